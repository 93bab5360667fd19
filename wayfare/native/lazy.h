/* Methods of lazy tensors in `wf.map`, in front of those of wayfare/batch/record/op_fast_paths.py; and setting up what
   record.h needs. */

/* The session of this thread, if a method may record there; borrowed from `mode`, which is a new reference. */
static PyObject *session_of(PyObject **mode) {
    *mode = PyObject_GetAttr(STATE, MODE_NAME);
    if (*mode == NULL) { PyErr_Clear(); return NULL; }
    PyObject *executor = PyObject_TypeCheck(*mode, ModeType) ? AT(*mode, M.executor) : NULL;
    if (executor == NULL || Py_TYPE(executor) != SessionType || AT(*mode, M.inference) != Py_False
        || AT(*mode, M.grad) == NULL) Py_CLEAR(*mode);
    return *mode == NULL ? NULL : executor;
}

/* The session of this thread, if a view of an ordinary tensor is made at once in it, without a history (Session._view_now); a
   new reference. NULL without an error: Python must look at it. */
static PyObject *viewing_session(PyObject *t) {
    PyObject *mode = NULL, *session = SessionType == NULL ? NULL : session_of(&mode);
    if (session != NULL) {
        PyObject *outer = PyObject_GetAttr(session, sOUTER), *watchers = AT(mode, M.watchers);
        int plain = outer == Py_None && IS_A(watchers, &PyTuple_Type) && PyTuple_GET_SIZE(watchers) == 0
            && (AT(mode, M.grad) == Py_False || AT(t, T.requires_grad) == Py_False);
        if (outer == NULL) PyErr_Clear();
        Py_XDECREF(outer);
        session = plain ? Py_NewRef(session) : NULL;
    }
    Py_XDECREF(mode);
    return session;
}

/* A view of this tensor was made: others see its memory. */
static int note_view(PyObject *session, PyObject *t) {
    PyObject *done = PyObject_CallMethodOneArg(session, sMEMORY_SHARED, t);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Is it a lazy tensor as it was made? */
static inline int is_lazy(PyObject *t) {
    PyObject *value = Py_TYPE(t) == StandInType ? AT(t, T.handle) : NULL;
    return IS_A(value, ValueType) && IS_A(AT(value, W.row), RowType);
}

/* The native recorder that is known for a key; borrowed; NULL without an error if there is none. */
static Recorder *known_recorder(PyObject *session, PyObject *mode, PyObject *key) {
    PyObject *both = AT(session, SESSION.op_fast_paths), *grad = AT(mode, M.grad);
    PyObject *table = !IS_A(both, &PyDict_Type) || grad == NULL ? NULL : PyDict_GetItemWithError(both, grad);
    PyObject *found = table == NULL ? NULL : PyDict_GetItemWithError(table, key);
    return found != NULL && Py_TYPE(found) == RecorderType ? (Recorder *)found : NULL;
}

/* An operator or a function of one or two lazy tensors: in a Front, `op` is the op. */
static PyObject *lazy_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *session = NULL, *key = NULL, *made = NULL, *rows[2], *number = NULL;
    int arity = front->arity;
    if (names == NULL && PyVectorcall_NARGS(flags) == arity && Py_TYPE(args[0]) == StandInType
        && (arity == 1 || Py_TYPE(args[1]) == StandInType || Py_TYPE(args[1]) == TensorType || PyFloat_CheckExact(args[1])
            || PyLong_CheckExact(args[1])))
        session = session_of(&mode);
    if (session == NULL) return PyObject_Vectorcall(front->general, args, flags, names);
    PyObject *value = AT(args[0], T.handle), *row = NULL, *dtype = NULL;
    if (is_lazy(args[0]) && (arity == 1 || Py_TYPE(args[1]) != StandInType || is_lazy(args[1])))
        row = AT(value, W.row), dtype = AT(row, R.dtype);
    if (dtype == (PyObject *)F32 || dtype == (PyObject *)F64) {
        rows[0] = value;
        if (arity == 1) key = PyTuple_Pack(2, front->op, row);
        else if (Py_TYPE(args[1]) == StandInType) {
            rows[1] = AT(args[1], T.handle);
            PyObject *other = AT(rows[1], W.row);
            key = front->reverse ? PyTuple_Pack(3, front->op, other, row) : PyTuple_Pack(3, front->op, row, other);
        } else if (Py_TYPE(args[1]) == TensorType) {
            rows[1] = number = own_row(session, args[1], row);
            if (number == NULL && !PyErr_Occurred()) goto general;
            key = number == NULL ? NULL : PyTuple_Pack(3, front->op, row, row);
        } else {
            number = front->number == args[1] && front->tensor_dtype == dtype ? Py_NewRef(front->tensor)
                : PyObject_CallFunctionObjArgs(CONSTANT, args[1], dtype, NULL);
            if (number != NULL && front->number != args[1]) {
                PyObject *old[3] = {front->number, front->tensor, front->tensor_dtype};
                front->number = Py_NewRef(args[1]);
                front->tensor = Py_NewRef(number);
                front->tensor_dtype = Py_NewRef(dtype);
                for (int i = 0; i < 3; i++) Py_XDECREF(old[i]);
            }
            rows[1] = number;
            key = number == NULL ? NULL : PyTuple_Pack(3, front->op, row, front->reverse ? Py_True : Py_False);
        }
        if (key == NULL) goto end;
        Recorder *known = known_recorder(session, mode, key);
        if (known == NULL && PyErr_Occurred()) goto end;
        if (known != NULL) {
            PyObject *inputs = arity == 1 ? PyTuple_Pack(1, value)
                : front->reverse ? PyTuple_Pack(2, rows[1], value) : PyTuple_Pack(2, value, rows[1]);
            if (inputs == NULL) goto end;
            Py_INCREF(known);
            PyObject *all = record_call(known, session, inputs, rows, arity);
            Py_DECREF(known);
            if (all != NULL) { made = Py_NewRef(PyTuple_GET_ITEM(all, 0)); Py_DECREF(all); }
            goto end;
        }
    }
general:
    made = PyObject_Vectorcall(front->general, args, flags, names);
end:
    Py_XDECREF(key);
    Py_XDECREF(number);
    Py_XDECREF(mode);
    return made;
}

/* A method that returns one part of a lazy tensor, or a tuple of parts: in a Front, `op` is the name. The table has, for
   (name, row, *arguments), a tuple of (row, offset, op, attributes). */
static PyObject *parts_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *session = NULL, *made = NULL;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    int plain = names == NULL && given > 0 && Py_TYPE(args[0]) == StandInType;
    for (Py_ssize_t i = 1; i < given && plain; i++) plain = PyLong_CheckExact(args[i]);
    if (plain && is_lazy(args[0])) session = session_of(&mode);
    if (session == NULL) return PyObject_Vectorcall(front->general, args, flags, names);
    PyObject *self = args[0], *value = AT(self, T.handle), *key = NULL, *found = NULL;
    int whole = AT(value, W.call) != NULL && AT(value, W.number) != NULL && AT(value, W.offset) != NULL;
    if (whole && (key = PyTuple_New(given + 1)) != NULL) {
        PyTuple_SET_ITEM(key, 0, Py_NewRef(front->op));
        PyTuple_SET_ITEM(key, 1, Py_NewRef(AT(value, W.row)));
        for (Py_ssize_t i = 1; i < given; i++) PyTuple_SET_ITEM(key, i + 1, Py_NewRef(args[i]));
        found = Py_XNewRef(PyDict_GetItemWithError(PARTS, key));
        Py_DECREF(key);
    }
    if (found == NULL) {
        if (!PyErr_Occurred()) made = PyObject_Vectorcall(front->general, args, flags, names);
        goto end;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(found);
    PyObject *live = Py_XNewRef(AT(session, SESSION.live));
    made = live == NULL ? NULL : PyTuple_New(n);
    int grad = AT(mode, M.grad) == Py_True && AT(value, W.needs_grad) == Py_True;
    replace(value, W.has_views, Py_NewRef(Py_True));
    for (Py_ssize_t i = 0; made != NULL && i < n; i++) {
        PyObject *what = PyTuple_GET_ITEM(found, i), *row = PyTuple_GET_ITEM(what, 0);
        PyObject *t = lazy_tensor(AT(value, W.call), 0, row, grad && AT(row, R.is_float) == Py_True);
        if (t == NULL) { Py_CLEAR(made); break; }
        PyTuple_SET_ITEM(made, i, t);
        PyObject *part = AT(t, T.handle), *handle = PyWeakref_NewRef(t, NULL);
        replace(part, W.number, Py_NewRef(AT(value, W.number)));
        replace(part, W.is_part, Py_NewRef(Py_True));
        replace(part, W.offset, PyNumber_Add(AT(value, W.offset), PyTuple_GET_ITEM(what, 1)));
        PUT(part, W.view_of, PyTuple_Pack(3, self, PyTuple_GET_ITEM(what, 2), PyTuple_GET_ITEM(what, 3)));
        if (handle == NULL || PyList_Append(live, handle) < 0 || AT(part, W.offset) == NULL || AT(part, W.view_of) == NULL)
            Py_CLEAR(made);
        Py_XDECREF(handle);
    }
    Py_XDECREF(live);
    Py_DECREF(found);
    if (made != NULL && front->numbers) {  /* one part, not a tuple */
        PyObject *one = Py_NewRef(PyTuple_GET_ITEM(made, 0));
        Py_DECREF(made);
        made = one;
    }
end:
    Py_XDECREF(mode);
    return made;
}

/* LazyMethod(general, op, arity, reverse): an op; LazyMethod(general, name, 0, one): parts. */
static PyObject *lazy_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    PyObject *general, *what;
    int arity, flag;
    if (!PyArg_ParseTuple(args, "OOip", &general, &what, &arity, &flag)) return NULL;
    Front *front = (Front *)new_front(type, general);
    if (front == NULL) return NULL;
    front->op = Py_NewRef(what);
    front->arity = (char)arity;
    front->call = (vectorcallfunc)(arity > 0 ? lazy_call : parts_call);
    if (arity > 0) front->reverse = (char)flag; else front->numbers = (char)flag;
    return (PyObject *)front;
}
static PyType_Slot lazy_slots[] = FRONT_SLOTS(lazy_new);
static PyType_Spec lazy_spec = {"wayfare.native.LazyMethod", sizeof(Front), 0, FRONT_FLAGS, lazy_slots};

/* The slots of Call and Value, whose types are set. */
static int slots_of_calls(void) {
    static const struct { Py_ssize_t *at; int is_value; const char *name; } slots[] = {
        {&C.signature, 0, "signature"}, {&C.inputs, 0, "inputs"}, {&C.extra, 0, "extra"}, {&C.group, 0, "group"},
        {&C.example, 0, "example"}, {&C.handles, 0, "handles"}, {&C.code, 0, "code"}, {&C.offset, 0, "offset"},
        {&C.depth, 0, "depth"}, {&C.row_id, 0, "row_id"}, {&W.call, 1, "call"}, {&W.number, 1, "number"}, {&W.row, 1, "row"},
        {&W.needs_grad, 1, "needs_grad"}, {&W.is_part, 1, "is_part"}, {&W.offset, 1, "offset"}, {&W.view_of, 1, "view_of"},
        {&W.has_views, 1, "has_views"}};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if ((*slots[i].at = slot_of(slots[i].is_value ? ValueType : CallType, slots[i].name)) < 0) return -1;
    return 0;
}

/* set_up_recording(StandIn, Call, Value, Row, RowCopy, RowCopies, Session, Mode, MISSED, check_now, parts, EPOCH, Hub) */
static PyObject *set_up_recording(PyObject *self, PyObject *args) {
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOO!O", &StandInType, &CallType, &ValueType, &RowType, &RowCopyType, &RowCopiesType,
                          &SessionType, &ModeType, &MISSED, &CHECK_NOW, &PARTS, &PyList_Type, &EPOCH, &HubType)) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) Py_INCREF(PyTuple_GET_ITEM(args, i));
#define SLOTS(table, type, field, name) if ((table.field = slot_of(type, name)) < 0) return NULL
    if (slots_of_calls() < 0 || make_here(&CALLS, CallType, free_call) < 0 || make_here(&VALUES, ValueType, free_value) < 0
        || make_here(&STAND_INS, StandInType, free_stand_in) < 0
        || make_here(&ROW_COPIES, RowCopyType, free_row_copy) < 0) return NULL;
    SLOTS(R, RowType, shape, "shape"); SLOTS(R, RowType, dtype, "dtype"); SLOTS(R, RowType, is_float, "is_float");
    SLOTS(R, RowType, layout, "layout");
    SLOTS(M, ModeType, executor, "executor"); SLOTS(M, ModeType, grad, "grad"); SLOTS(M, ModeType, inference, "inference");
    SLOTS(M, ModeType, watchers, "watchers");
    SLOTS(SESSION, SessionType, pending, "pending"); SLOTS(SESSION, SessionType, pending_bytes, "pending_bytes");
    SLOTS(SESSION, SessionType, limit, "limit"); SLOTS(SESSION, SessionType, hub, "hub"); SLOTS(SESSION, SessionType, live, "live");
    SLOTS(SESSION, SessionType, row_copies, "row_copies"); SLOTS(SESSION, SessionType, op_fast_paths, "op_fast_paths");
    SLOTS(SESSION, SessionType, opaque_fast_paths, "opaque_fast_paths"); SLOTS(SESSION, SessionType, callees, "callees");
    SLOTS(SESSION, SessionType, no_common_calls, "no_common_calls");
    SLOTS(HUB, HubType, current, "current"); SLOTS(HUB, HubType, in_order, "in_order");
    SLOTS(K, RowCopyType, data, "data"); SLOTS(K, RowCopyType, row, "row"); SLOTS(K, RowCopyType, source, "source");
    if ((COPIES = slot_of(RowCopiesType, "_copies")) < 0 || (TENSOR_ROLE = slot_of(TensorType, "_role")) < 0) return NULL;
    Py_RETURN_NONE;
}

static int init_record(PyObject *m) {
    PyObject **const names[] = {&sFLUSH, &sOF, &sON_DEVICE, &sOUTER, &sMEMORY_SHARED};
    static const char *const texts[] = {"flush", "of", "on_device", "outer", "memory_shared"};
    for (int i = 0; i < 5; i++) if ((*names[i] = PyUnicode_InternFromString(texts[i])) == NULL) return -1;
    return add_type(m, "Recorder", &recorder_spec, &RecorderType) || add_type(m, "FastPath", &fast_path_spec, &FastPathType)
        || add_type(m, "LazyMethod", &lazy_spec, &LazyMethodType) ? -1 : 0;
}
