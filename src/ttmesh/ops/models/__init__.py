"""Operations that exist for one model family: DeepSeek, Kimi, Mamba, delta rule, diffusion transformers."""
