"""Skip guards on torch.cuda.is_available(): source (finds them in a file), pins (which of them may be dropped)."""
