"""Replaying recorded calls: plans, the decisions between them, the fast path, and gradients through a call."""
