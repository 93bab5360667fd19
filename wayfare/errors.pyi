from wayfare.core.errors import *
