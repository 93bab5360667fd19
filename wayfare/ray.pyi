from wayfare.distributed.ray import *
