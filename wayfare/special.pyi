from wayfare.api.special import *
