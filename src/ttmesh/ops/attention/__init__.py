"""Attention: prefill, decode, latent, sparse; heads, rotary embedding, kv caches, also paged. Ring attention: ccl/fused."""
