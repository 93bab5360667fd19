from wayfare.api.signal.windows import *
