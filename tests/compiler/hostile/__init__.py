"""Hostile cases for `wf.compile`: worlds that change between calls, each judged by its eager twin."""
