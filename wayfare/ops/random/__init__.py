"""Random draws and dropout."""
