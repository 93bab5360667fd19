from wayfare.compat.utils.hooks import *
