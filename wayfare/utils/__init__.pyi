from wayfare.compat.utils import *
from wayfare.compat.utils import checkpoint as checkpoint
from wayfare.compat.utils import data as data
from wayfare.compat.utils import hooks as hooks
from wayfare.compat.utils import tensorboard as tensorboard
