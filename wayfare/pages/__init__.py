"""What pages are made of: HTML put together safely, and pictures as SVG."""
