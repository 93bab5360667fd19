"""Seeing what a program does: graphs, recorded runs, profiles, reports, and the pages that show them."""
