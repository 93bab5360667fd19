"""Matrix products and what is made of them: linear, einsum, attention."""
