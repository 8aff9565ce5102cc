"""Attention: prefill, decode, latent, sparse; heads, rotary embedding, kv caches.

Paged attention is in sdpa_decode and sdpa_prefill, ring attention in ccl/fused.
"""
