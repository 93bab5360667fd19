from wayfare.compat.backends.cudnn import *
