from wayfare.api.amp import *
