from wayfare.compat.cuda import *
