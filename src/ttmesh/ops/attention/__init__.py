"""Attention: prefill, decode, latent, sparse; heads, rotary embedding, kv caches and paged ones. Ring attention: ccl/fused."""
