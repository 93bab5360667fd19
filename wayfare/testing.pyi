from wayfare.api.testing import *
