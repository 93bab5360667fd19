from wayfare.compat.accelerator import *
