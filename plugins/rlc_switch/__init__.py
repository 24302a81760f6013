"""The layout-conversion switch for stock Triton: policy (environment), choice (which lowering), pipeline."""
