from wayfare.see.profile import *
