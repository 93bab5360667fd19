"""Recording: what examples do becomes calls, values and signatures; nothing is computed here."""
