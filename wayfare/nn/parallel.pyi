from wayfare.distributed.parallel import *
