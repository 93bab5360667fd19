from wayfare.compat.utils.checkpoint import *
