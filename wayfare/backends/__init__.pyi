from wayfare.compat.backends import *
from wayfare.compat.backends import cuda as cuda
from wayfare.compat.backends import cudnn as cudnn
from wayfare.compat.backends import mps as mps
