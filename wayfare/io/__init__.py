"""Saving and loading: safetensors files with a structure in JSON, written so that a crash cannot harm them.

No file is ever unpickled, and no name found in a file is looked up as code.
"""

from wayfare.io.checkpoint import Checkpoint, SavedCheckpoint
from wayfare.io.files import load, save

__all__ = ["Checkpoint", "SavedCheckpoint", "load", "save"]
