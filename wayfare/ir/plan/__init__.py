"""Plans: a graph for fixed sizes as native commands over one arena of memory."""
