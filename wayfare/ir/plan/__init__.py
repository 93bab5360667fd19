"""Plans: a graph for given sizes as native commands over one arena."""
