from wayfare.compat.backends.mps import *
