from wayfare.compat.utils.tensorboard import *
