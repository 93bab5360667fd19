from wayfare.see.debug import *
