"""The viewer: a run document as one self-contained HTML page."""

from wayfare.see.viewer.page import page

__all__ = ["page"]
