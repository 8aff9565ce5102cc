"""Attention: prefill, decode, latent, sparse; heads, rotary embedding. Kv caches are in ops/caches.

Paged attention is in sdpa_decode and sdpa_prefill, ring attention in ccl/fused.
"""
