"""What pages are made of: HTML put together safely, the files it is joined from, and pictures as SVG."""
