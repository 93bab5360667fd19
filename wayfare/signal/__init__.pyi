from wayfare.api.signal import *
from wayfare.api.signal import windows as windows
