from wayfare.train.metrics import *
