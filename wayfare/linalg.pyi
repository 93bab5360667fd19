from wayfare.api.linalg import *
