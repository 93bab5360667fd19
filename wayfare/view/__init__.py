"""The viewer: a run document as one self-contained HTML page."""

from wayfare.view.page import page

__all__ = ["page"]
