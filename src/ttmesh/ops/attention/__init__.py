"""Attention: scores, prefill, decode, latent, sparse; heads, rotary embedding, kv caches. Ring attention is in ccl/fused."""
