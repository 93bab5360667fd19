/* Calls of modules, layers and the user's functions in `wf.map`: what stands between such a call and the fast path that
   records it, and the methods of lazy tensors that take more than tensors. See wayfare/batch/record and wayfare/nn/hooks.py. */

static PyTypeObject *CallFrontType;
static PyObject *sHOOKS;

/* The session of this thread, if it records and each call may be like another one; borrowed from `mode`. */
static PyObject *recording_session(PyObject **mode, int watched) {
    PyObject *session = SessionType == NULL || PySet_GET_SIZE(UNUSUAL) == 0 ? NULL : session_of(mode);
    if (session == NULL) return NULL;
    PyObject *hub = AT(session, SESSION.hub), *watchers = AT(*mode, M.watchers);
    if (in_any_order(hub)
        && AT(session, SESSION.no_common_calls) == Py_False
        && (watched || (IS_A(watchers, &PyTuple_Type) && PyTuple_GET_SIZE(watchers) == 0))) return session;
    Py_CLEAR(*mode);
    return NULL;
}

static PyObject *tuple_of(PyObject *const *items, Py_ssize_t n) {
    PyObject *made = PyTuple_New(n);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++) PyTuple_SET_ITEM(made, i, Py_NewRef(items[i]));
    return made;
}

/* The results of a call by one of the fast paths that are known for `key`, which is taken over; MISSED if there is none. */
static PyObject *by_fast_path(PyObject *session, PyObject *mode, PyObject *key, PyObject *const *args, Py_ssize_t n) {
    PyObject *both = AT(session, SESSION.opaque_fast_paths);
    PyObject *table = !IS_A(both, &PyDict_Type) || key == NULL ? NULL : PyDict_GetItemWithError(both, AT(mode, M.grad));
    PyObject *paths = table == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(table, key));
    Py_XDECREF(key);
    if (!IS_A(paths, &PyTuple_Type)) { Py_XDECREF(paths); return PyErr_Occurred() ? NULL : Py_NewRef(MISSED); }
    PyObject *made = Py_NewRef(MISSED), *all = NULL;
    for (Py_ssize_t i = 0; made == MISSED && i < PyTuple_GET_SIZE(paths); i++) {
        PyObject *path = PyTuple_GET_ITEM(paths, i);
        Py_DECREF(made);
        if (Py_TYPE(path) == FastPathType) { made = by_one_fast_path((Recorder *)path, session, args, n); continue; }
        if (all == NULL) all = tuple_of(args, n);
        made = all == NULL ? NULL : PyObject_CallFunctionObjArgs(path, session, all, NULL);
    }
    Py_XDECREF(all);
    Py_DECREF(paths);
    return made;
}

/* The same for a method or function of an owner, and a tuple of arguments. */
static PyObject *by_method(PyObject *session, PyObject *mode, PyObject *owner, PyObject *function, PyObject *args) {
    PyObject *id = PyLong_FromVoidPtr(owner), *key = id == NULL ? NULL : PyTuple_Pack(2, id, function);
    Py_XDECREF(id);
    return key == NULL ? NULL : by_fast_path(session, mode, key, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args));
}

/* nn.hooks.as_one(module, args, options) */
static PyObject *module_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *session = NULL;
    if (names == NULL && PyVectorcall_NARGS(flags) == 3 && PyTuple_CheckExact(args[1]) && PyDict_CheckExact(args[2])
        && PyDict_GET_SIZE(args[2]) == 0) session = recording_session(&mode, 0);
    if (session != NULL) {
        PyObject *made = by_fast_path(session, mode, PyLong_FromVoidPtr(args[0]), &PyTuple_GET_ITEM(args[1], 0), PyTuple_GET_SIZE(args[1]));
        Py_DECREF(mode);
        if (made != MISSED) return made;
        Py_DECREF(made);
    }
    return PyObject_Vectorcall(front->general, args, flags, names);
}

/* Module.__call__(module, *args): in a Front, `op` is called with the module and an error, before that is raised. */
static PyObject *whole_module_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *hooks, *made;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    PyObject *session = names == NULL && given > 0 ? recording_session(&mode, 0) : NULL;
    if (session == NULL) return PyObject_Vectorcall(front->general, args, flags, names);
    hooks = PyObject_GetAttr(args[0], sHOOKS);
    if (hooks == Py_None) made = by_fast_path(session, mode, PyLong_FromVoidPtr(args[0]), args + 1, given - 1);
    else { PyErr_Clear(); made = Py_NewRef(MISSED); }
    Py_XDECREF(hooks);
    Py_DECREF(mode);
    if (made == MISSED) {
        Py_DECREF(made);
        return PyObject_Vectorcall(front->general, args, flags, names);
    }
    if (made == NULL) {
        PyObject *type, *error, *trace, *named;
        PyErr_Fetch(&type, &error, &trace);
        PyErr_NormalizeException(&type, &error, &trace);
        named = PyObject_CallFunctionObjArgs(front->op, args[0], error, NULL);
        if (named == NULL) PyErr_Clear();
        Py_XDECREF(named);
        PyErr_Restore(type, error, trace);
    }
    return made;
}

/* Session.opaque_call(self, owner, function, args, options, info) */
static PyObject *opaque_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *session = NULL;
    if (names == NULL && PyVectorcall_NARGS(flags) == 6 && PyTuple_CheckExact(args[3]) && PyDict_CheckExact(args[4])
        && PyDict_GET_SIZE(args[4]) == 0) session = recording_session(&mode, 1);
    if (session != NULL) {
        PyObject *made = session != args[0] ? Py_NewRef(MISSED) : by_method(session, mode, args[1], args[2], args[3]);
        Py_DECREF(mode);
        if (made != MISSED) return made;
        Py_DECREF(made);
    }
    return PyObject_Vectorcall(front->general, args, flags, names);
}

/* nn.one_call.as_one(layer, method, args, options, about) */
static PyObject *layer_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *session = NULL;
    if (names == NULL && PyVectorcall_NARGS(flags) == 5 && PyTuple_CheckExact(args[2]) && PyDict_CheckExact(args[3])
        && PyDict_GET_SIZE(args[3]) == 0) session = recording_session(&mode, 1);
    if (session != NULL) {
        PyObject *made = by_method(session, mode, args[0], args[1], args[2]);
        Py_DECREF(mode);
        if (made != MISSED) return made;
        Py_DECREF(made);
    }
    return PyObject_Vectorcall(front->general, args, flags, names);
}

/* What is called in place of a function of the user: in a Front, `op` is the key of its fast paths, `number` the session,
   and `tensor` a list with the number of calls in a row that could not be opaque. */
static PyObject *function_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *session = names == NULL ? recording_session(&mode, 1) : NULL;
    if (session != NULL) {
        PyObject *made = session != front->number ? Py_NewRef(MISSED)
            : by_fast_path(session, mode, Py_NewRef(front->op), args, PyVectorcall_NARGS(flags));
        Py_DECREF(mode);
        if (made == NULL) return NULL;
        if (made != MISSED) {
            if (PyList_SetItem(front->tensor, 0, PyLong_FromLong(0)) < 0) Py_CLEAR(made);
            return made;
        }
        Py_DECREF(made);
    }
    return PyObject_Vectorcall(front->general, args, flags, names);
}

/* record.function_call.chosen(called): in a Front, `op` has the classes of what is looked at before it is called. */
static PyObject *chosen_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    if (names == NULL && PyVectorcall_NARGS(flags) == 1) {
        PyObject *called = args[0], *mode = NULL, *found = NULL;
        Py_ssize_t i = 0, n = PyTuple_GET_SIZE(front->op);
        while (i < n && (PyObject *)Py_TYPE(called) != PyTuple_GET_ITEM(front->op, i)) i++;
        if (i == n) return Py_NewRef(called);
        PyObject *session = SessionType == NULL || PySet_GET_SIZE(UNUSUAL) == 0 ? NULL : session_of(&mode);
        if (session != NULL) {
            PyObject *callees = AT(session, SESSION.callees);
            if (IS_A(callees, &PyDict_Type)) found = Py_XNewRef(PyDict_GetItemWithError(callees, called));
            Py_DECREF(mode);
            if (found != NULL) return found;
            if (PyErr_Occurred()) return NULL;
        }
    }
    return PyObject_Vectorcall(front->general, args, flags, names);
}

/* The recorder that is known for a key (taken over) makes a call with these inputs (taken over); its only output. NULL
   without an error: there is none. */
static PyObject *by_recorder(PyObject *session, PyObject *mode, PyObject *key, PyObject *inputs) {
    Recorder *known = key == NULL || inputs == NULL ? NULL : known_recorder(session, mode, key);
    PyObject *all = NULL, *made = NULL;
    Py_XDECREF(key);
    if (known == NULL) { Py_XDECREF(inputs); return NULL; }
    Py_INCREF(known);
    Py_INCREF(inputs);
    all = record_call(known, session, inputs, &PyTuple_GET_ITEM(inputs, 0), PyTuple_GET_SIZE(inputs));
    Py_DECREF(inputs);
    Py_DECREF(known);
    if (all != NULL) { made = Py_NewRef(PyTuple_GET_ITEM(all, 0)); Py_DECREF(all); }
    return made;
}

/* `cat` or `stack` of lazy tensors, (tensors, dim): in a Front, `op` is the op. */
static PyObject *join_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *session = NULL;
    if (names == NULL && PyVectorcall_NARGS(flags) == 2 && PyLong_CheckExact(args[1])
        && (PyTuple_CheckExact(args[0]) || PyList_CheckExact(args[0]))) session = session_of(&mode);
    if (session != NULL) {
        Py_ssize_t n = PySequence_Fast_GET_SIZE(args[0]);
        PyObject *key = PyTuple_New(n + 2), *inputs = PyTuple_New(n), *made = NULL;
        int lazy = key != NULL && inputs != NULL && n > 0;
        for (Py_ssize_t i = 0; lazy && i < n; i++) {
            PyObject *t = PySequence_Fast_GET_ITEM(args[0], i);
            if ((lazy = is_lazy(t)) == 0) break;
            PyTuple_SET_ITEM(inputs, i, Py_NewRef(AT(t, T.handle)));
            PyTuple_SET_ITEM(key, i + 2, Py_NewRef(AT(AT(t, T.handle), W.row)));
        }
        if (lazy) {
            PyTuple_SET_ITEM(key, 0, Py_NewRef(front->op));
            PyTuple_SET_ITEM(key, 1, Py_NewRef(args[1]));
            made = by_recorder(session, mode, key, inputs);
        } else { Py_XDECREF(key); Py_XDECREF(inputs); }
        Py_DECREF(mode);
        if (made != NULL || PyErr_Occurred()) return made;
    }
    return PyObject_Vectorcall(front->general, args, flags, names);
}

/* A method of one lazy tensor and plain arguments: in a Front, `op` is its name. */
static PyObject *arguments_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *session = NULL;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    if (names == NULL && given > 0 && is_lazy(args[0])) session = session_of(&mode);
    if (session != NULL) {
        PyObject *value = AT(args[0], T.handle), *plain = PyTuple_New(given - 1), *types = PyTuple_New(given - 1), *made = NULL;
        for (Py_ssize_t i = 1; plain != NULL && types != NULL && i < given; i++) {
            PyTuple_SET_ITEM(plain, i - 1, Py_NewRef(args[i]));
            PyTuple_SET_ITEM(types, i - 1, Py_NewRef((PyObject *)Py_TYPE(args[i])));
        }
        if (plain != NULL && types != NULL)
            made = by_recorder(session, mode, PyTuple_Pack(4, front->op, AT(value, W.row), plain, types), PyTuple_Pack(1, value));
        Py_XDECREF(plain);
        Py_XDECREF(types);
        Py_DECREF(mode);
        if (made != NULL) return made;
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) return NULL;
            PyErr_Clear();  /* an argument is not hashable */
        }
    }
    return PyObject_Vectorcall(front->general, args, flags, names);
}

/* CallFront(general, what, op=None, session=None, misses=None); `what` says which of the functions above it is. */
static PyObject *call_front_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    static const struct { const char *name; void *call; } all[] = {
        {"module", module_call}, {"opaque", opaque_call}, {"function", function_call}, {"chosen", chosen_call},
        {"join", join_call}, {"arguments", arguments_call}, {"call", whole_module_call},
        {"layer", layer_call}};
    PyObject *general, *op = Py_None, *session = Py_None, *misses = Py_None;
    const char *what;
    if (!PyArg_ParseTuple(args, "Os|OOO", &general, &what, &op, &session, &misses)) return NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i].name, what) != 0) continue;
        if (i == 2 && !(PyList_CheckExact(misses) && PyList_GET_SIZE(misses) == 1)) break;
        if (i == 3 && !PyTuple_CheckExact(op)) break;
        Front *front = (Front *)new_front(type, general);
        if (front == NULL) return NULL;
        front->op = Py_NewRef(op);
        front->number = Py_NewRef(session);
        front->tensor = Py_NewRef(misses);
        front->call = (vectorcallfunc)all[i].call;
        return (PyObject *)front;
    }
    PyErr_Format(PyExc_ValueError, "there is no front of %s with these arguments", what);
    return NULL;
}
static PyType_Slot call_front_slots[] = FRONT_SLOTS(call_front_new);
static PyType_Spec call_front_spec = {"wayfare.native.CallFront", sizeof(Front), 0, FRONT_FLAGS, call_front_slots};

static int init_calls(PyObject *m) {
    if ((sHOOKS = PyUnicode_InternFromString("_hooks")) == NULL) return -1;
    return add_type(m, "CallFront", &call_front_spec, &CallFrontType);
}

/* is_within(frame, known, bottom): is this frame, or a caller of it in the example, within a range of its code? None: Python must
   look. See wayfare/batch/analysis/exception_scopes.py. */
static PyObject *is_within(PyObject *self, PyObject *args) {
    PyObject *frame, *known, *bottom, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyFrame_Type, &frame, &PyDict_Type, &known, &bottom)) return NULL;
    Py_INCREF(frame);
    while (frame != NULL && result == NULL) {
        PyCodeObject *code = PyFrame_GetCode((PyFrameObject *)frame);
        PyObject *id = PyLong_FromVoidPtr(code), *found = id == NULL ? NULL : PyDict_GetItemWithError(known, id);
        Py_DECREF(code);
        Py_XDECREF(id);
        PyObject *ranges = IS_A(found, &PyTuple_Type) && PyTuple_GET_SIZE(found) == 2 ? PyTuple_GET_ITEM(found, 0) : NULL;
        if (ranges == NULL || !PyTuple_CheckExact(ranges)) {
            if (!PyErr_Occurred()) result = Py_NewRef(Py_None);
            break;
        }
        if (ranges == bottom) { result = Py_NewRef(Py_False); break; }
        int at = PyTuple_GET_SIZE(ranges) == 0 ? 0 : PyFrame_GetLasti((PyFrameObject *)frame);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ranges) && result == NULL; i++) {
            int start, end;
            PyObject *managers;
            if (!PyArg_ParseTuple(PyTuple_GET_ITEM(ranges, i), "iiO", &start, &end, &managers)) goto end;
            int always = PyTuple_CheckExact(managers) && PyTuple_GET_SIZE(managers) == 0;
            if (start <= at && at < end) result = Py_NewRef(always ? Py_True : Py_None);
        }
        PyObject *back = (PyObject *)PyFrame_GetBack((PyFrameObject *)frame);
        Py_SETREF(frame, back);
    }
    if (result == NULL && !PyErr_Occurred()) result = Py_NewRef(Py_False);
end:
    Py_XDECREF(frame);
    return result;
}
