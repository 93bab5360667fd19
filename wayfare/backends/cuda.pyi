from wayfare.compat.backends.cuda import *
