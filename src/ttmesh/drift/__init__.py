"""Where a program drifts from float32: shadows of its tensors, what each operation loses, what would give it back."""
