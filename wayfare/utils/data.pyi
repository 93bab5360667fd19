from wayfare.compat.utils.data import *
