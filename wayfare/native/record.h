/* Recording in `wf.map`: a call that looks like an earlier one, and methods of lazy tensors. See wayfare/batch/record. */

static PyTypeObject *RowType, *ModeType;
static PyTypeObject *StandInType, *CallType, *ValueType, *RowCopyType, *RowCopiesType, *SessionType, *RecorderType, *FastPathType, *LazyMethodType;
static PyObject *MISSED, *CHECK_NOW, *PARTS;
static struct { Py_ssize_t signature, inputs, extra, group, example, handles, code, offset, depth, row_id; } C;
static struct { Py_ssize_t call, number, row, needs_grad, is_part, offset, view_of, has_views; } W;
static struct { Py_ssize_t shape, dtype, is_float; } R;
static struct { Py_ssize_t executor, grad, inference, watchers; } M;
static struct { Py_ssize_t data, row, source; } K;
static Py_ssize_t COPIES, TENSOR_ROLE;
static PyObject *EPOCH;
static PyObject *sPENDING, *sPENDING_BYTES, *sLIMIT, *sFLUSH, *sHUB, *sCURRENT, *sROW_COPIES, *sOF, *sLIVE, *sOP_FAST_PATHS;

enum { MOST_OUTS = 8, MOST_ROWS = 16 };
enum { NEVER_NEEDS, ALWAYS_NEEDS, MAYBE_NEEDS };
enum { IS_VALUE, IS_OUTSIDE, MAY_HAVE_ROLE };

/* Records calls of one signature. A fast path is a recorder that first looks whether the arguments are those it is for. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *signature, *outs, *bytes;
    char carries[MOST_OUTS], needs_grad, n_outs, single, checks;
    /* of a fast path: for each argument the length of a tuple (-1: none, -2: one tensor), for each row what it is */
    PyObject *owner, *holds, *fits, *expected, *held_at;
    signed char structure[MOST_ROWS], rows[MOST_ROWS];
    int n_args, n_rows, by_epoch;
} Recorder;

static PyObject *lazy_tensor(PyObject *call, Py_ssize_t number, PyObject *row, int needs_grad) {
    PyObject *value = ValueType->tp_alloc(ValueType, 0), *t;
    if (value == NULL) return NULL;
    PyObject *needs = needs_grad ? Py_True : Py_False;
    PUT(value, W.call, Py_NewRef(call));
    PUT(value, W.number, PyLong_FromSsize_t(number));
    PUT(value, W.row, Py_NewRef(row));
    PUT(value, W.needs_grad, Py_NewRef(needs));
    PUT(value, W.is_part, Py_NewRef(Py_False));
    PUT(value, W.offset, PyLong_FromLong(0));
    t = StandInType->tp_alloc(StandInType, 0);
    if (t == NULL) { Py_DECREF(value); return NULL; }
    PUT(t, T.handle, value);
    PUT(t, T.requires_grad, Py_NewRef(needs));
    return t;
}

/* Make the call and its lazy tensors (a tuple; a new reference). Takes over `inputs`, whose rows are `rows`. */
static PyObject *record_call(Recorder *r, PyObject *session, PyObject *inputs, PyObject *const *rows, Py_ssize_t n_rows) {
    PyObject *call = NULL, *made = NULL, *handles = NULL, *hub = NULL, *pending = NULL, *total = NULL;
    PyObject *waiting = PyObject_GetAttr(session, sPENDING_BYTES), *limit = PyObject_GetAttr(session, sLIMIT);
    int full = waiting == NULL || limit == NULL ? -1 : PyLong_AsLongLong(waiting) > PyLong_AsLongLong(limit);
    Py_XDECREF(waiting);
    Py_XDECREF(limit);
    if (full < 0 || PyErr_Occurred()) goto failed;
    if (full) {
        PyObject *done = PyObject_CallMethodNoArgs(session, sFLUSH);
        if (done == NULL) goto failed;
        Py_DECREF(done);
    }
    int needs = r->needs_grad == ALWAYS_NEEDS;
    for (Py_ssize_t i = 0; r->needs_grad == MAYBE_NEEDS && i < n_rows && !needs; i++) {
        if (Py_TYPE(rows[i]) == ValueType) needs = AT(rows[i], W.needs_grad) == Py_True;
        else if (PyObject_TypeCheck(rows[i], TensorType)) needs = AT(rows[i], T.requires_grad) == Py_True;
    }
    call = CallType->tp_alloc(CallType, 0);
    hub = PyObject_GetAttr(session, sHUB);
    made = PyTuple_New(r->n_outs);
    handles = PyTuple_New(r->n_outs);
    if (call == NULL || hub == NULL || made == NULL || handles == NULL) goto failed;
    PUT(call, C.signature, Py_NewRef(r->signature));
    PUT(call, C.inputs, Py_NewRef(inputs));
    PUT(call, C.extra, Py_NewRef(Py_None));
    PUT(call, C.group, Py_NewRef(Py_None));
    PUT(call, C.example, PyObject_GetAttr(hub, sCURRENT));
    if (AT(call, C.example) == NULL) goto failed;
    for (int i = 0; i < r->n_outs; i++) {
        PyObject *t = lazy_tensor(call, i, PyTuple_GET_ITEM(r->outs, i), needs && r->carries[i]);
        if (t == NULL) goto failed;
        PyTuple_SET_ITEM(made, i, t);
        PyObject *handle = PyWeakref_NewRef(t, NULL);  /* tells later whether the tensor is still held */
        if (handle == NULL) goto failed;
        PyTuple_SET_ITEM(handles, i, handle);
    }
    PUT(call, C.handles, Py_NewRef(handles));
    if (note_line(call, C.code, C.offset) < 0) goto failed;
    pending = PyObject_GetAttr(session, sPENDING);
    if (pending == NULL || PyList_Append(pending, call) < 0) goto failed;
    waiting = PyObject_GetAttr(session, sPENDING_BYTES);  /* `flush` may have changed it */
    total = waiting == NULL ? NULL : PyNumber_Add(waiting, r->bytes);
    Py_XDECREF(waiting);
    if (total == NULL || PyObject_SetAttr(session, sPENDING_BYTES, total) < 0) goto failed;
    goto end;
failed:
    Py_CLEAR(made);
end:
    Py_XDECREF(inputs); Py_XDECREF(call); Py_XDECREF(handles); Py_XDECREF(hub); Py_XDECREF(pending); Py_XDECREF(total);
    return made;
}

/* record(session, rows, depth) */
static PyObject *recorder_call(Recorder *r, PyObject *const *args, size_t flags, PyObject *names) {
    if (names != NULL || PyVectorcall_NARGS(flags) != 3) { PyErr_SetString(PyExc_TypeError, "record(session, rows, depth)"); return NULL; }
    PyObject *rows = PySequence_Fast(args[1], "rows");
    if (rows == NULL) return NULL;
    PyObject *made = record_call(r, args[0], Py_NewRef(args[1]), PySequence_Fast_ITEMS(rows), PySequence_Fast_GET_SIZE(rows));
    Py_DECREF(rows);
    return made;
}

/* RowCopies.of for a tensor without a gradient, whose array is contiguous. */
static PyObject *row_copy(PyObject *copies, PyObject *t, PyArrayObject *x, PyObject *row) {
    PyObject *table = Py_TYPE(copies) == RowCopiesType ? AT(copies, COPIES) : NULL;
    if (!IS_A(table, &PyDict_Type)) return PyObject_CallMethodObjArgs(copies, sOF, t, row, NULL);
    PyObject *id = PyLong_FromVoidPtr(t), *copy = id == NULL ? NULL : PyDict_GetItemWithError(table, id);
    if (IS_A(copy, RowCopyType) && AT(copy, K.row) == row && IS_A(AT(copy, K.data), &PyBytes_Type)
        && PyBytes_GET_SIZE(AT(copy, K.data)) == PyArray_NBYTES(x)
        && memcmp(PyBytes_AS_STRING(AT(copy, K.data)), PyArray_DATA(x), PyArray_NBYTES(x)) == 0) {
        Py_DECREF(id);
        return Py_NewRef(copy);
    }
    copy = PyErr_Occurred() ? NULL : RowCopyType->tp_alloc(RowCopyType, 0);
    if (copy != NULL) {
        PUT(copy, K.data, PyBytes_FromStringAndSize(PyArray_DATA(x), PyArray_NBYTES(x)));
        PUT(copy, K.row, Py_NewRef(row));
        PUT(copy, K.source, Py_NewRef(t));
        if (AT(copy, K.data) == NULL || PyDict_SetItem(table, id, copy) < 0) Py_CLEAR(copy);
    }
    Py_XDECREF(id);
    return copy;
}

/* A tensor from outside as a row: no weight, no history, of the expected shape and dtype. NULL without an error: missed. */
static PyObject *outside_row(PyObject *session, PyObject *t, PyObject *expected, int may_have_role) {
    if (Py_TYPE(t) != TensorType || AT(t, T.requires_grad) != Py_False || AT(t, T.view) != Py_None) return NULL;
    if (may_have_role && AT(t, TENSOR_ROLE) != NULL) return NULL;
    PyArrayObject *x = ARRAY(AT(t, T.array));
    if (!IS_ARRAY(x) || (PyObject *)PyArray_DESCR(x) != AT(expected, R.dtype) || !PyArray_IS_C_CONTIGUOUS(x)) return NULL;
    if (!has_shape(x, AT(expected, R.shape))) return NULL;
    PyObject *copies = PyObject_GetAttr(session, sROW_COPIES);
    PyObject *row = copies == NULL ? NULL : row_copy(copies, t, x, expected);
    Py_XDECREF(copies);
    return row;
}

/* fast_path(session, args): the results of the call, or MISSED. */
static PyObject *fast_path_call(Recorder *r, PyObject *const *given, size_t flags, PyObject *names) {
    if (names != NULL || PyVectorcall_NARGS(flags) != 2 || !PyTuple_Check(given[1])) { PyErr_SetString(PyExc_TypeError, "fast_path(session, args)"); return NULL; }
    PyObject *session = given[0], *args = given[1], *flat[MOST_ROWS];
    if (PyTuple_GET_SIZE(args) != r->n_args) return Py_NewRef(MISSED);
    int n = 0;
    for (int i = 0; i < r->n_args; i++) {
        PyObject *part = PyTuple_GET_ITEM(args, i);
        int how = r->structure[i];
        if (how == -1) { if (part != Py_None) return Py_NewRef(MISSED); }
        else if (how == -2) flat[n++] = part;
        else {
            if (!PyTuple_CheckExact(part) || PyTuple_GET_SIZE(part) != how) return Py_NewRef(MISSED);
            for (int k = 0; k < how; k++) flat[n++] = PyTuple_GET_ITEM(part, k);
        }
    }
    PyObject *rows = PyTuple_New(n), *result = NULL;
    if (rows == NULL) return NULL;
    for (int i = 0; i < n; i++) {
        PyObject *expected = PyTuple_GET_ITEM(r->expected, i), *row = NULL;
        if (r->rows[i] == IS_VALUE) {
            if (Py_TYPE(flat[i]) == StandInType) {
                PyObject *value = AT(flat[i], T.handle);
                if (IS_A(value, ValueType) && AT(value, W.row) == expected) row = Py_NewRef(value);
            }
        } else row = outside_row(session, flat[i], expected, r->rows[i] == MAY_HAVE_ROLE);
        if (row == NULL) {
            Py_DECREF(rows);
            return PyErr_Occurred() ? NULL : Py_NewRef(MISSED);
        }
        PyTuple_SET_ITEM(rows, i, row);
    }
    /* A guard that looks at modules only still holds if no module has changed since it did. */
    PyObject *epoch = r->by_epoch ? PyList_GET_ITEM(EPOCH, 0) : NULL;
    int still = epoch != NULL && epoch == r->held_at;
    if (!still) {
        Py_XINCREF(epoch);
        PyObject *holds = PyObject_CallNoArgs(r->holds);
        still = holds == NULL ? -1 : PyObject_IsTrue(holds);
        Py_XDECREF(holds);
        if (still == 1) Py_XSETREF(r->held_at, epoch); else Py_XDECREF(epoch);
    }
    if (still < 1) { Py_DECREF(rows); return still < 0 ? NULL : Py_NewRef(MISSED); }
    PyObject *made = record_call(r, session, Py_NewRef(rows), &PyTuple_GET_ITEM(rows, 0), n);
    if (made != NULL && r->checks) {
        /* A call that will fail must fail here, before the example goes on; inside a `try`, also one that may fail. */
        PyObject *first = n > 0 ? PyTuple_GET_ITEM(rows, 0) : NULL, *fits = NULL;
        if (r->fits != Py_None && IS_A(first, RowCopyType) && AT(first, K.source) != NULL)
            fits = PyObject_CallFunctionObjArgs(r->fits, r->owner, AT(first, K.source), NULL);
        int good = fits == NULL ? 0 : PyObject_IsTrue(fits);
        PyObject *checked = NULL;
        if (good == 0 && !PyErr_Occurred())
            checked = PyObject_CallFunctionObjArgs(CHECK_NOW, session, PyTuple_GET_ITEM(made, r->n_outs - 1),
                                                   fits == NULL ? Py_None : Py_False, NULL);
        if (good != 1 && checked == NULL) Py_CLEAR(made);
        Py_XDECREF(fits);
        Py_XDECREF(checked);
    }
    Py_DECREF(rows);
    if (made == NULL || !r->single) return made;
    result = Py_NewRef(PyTuple_GET_ITEM(made, 0));
    Py_DECREF(made);
    return result;
}

/* Recorder(signature, outs, carries, bytes, needs_grad) and
   FastPath(signature, outs, carries, bytes, needs_grad, owner, holds, fits, expected, structure, rows, single, checks, by_epoch) */
static PyObject *recorder_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    PyObject *signature, *outs, *carries, *bytes, *owner = NULL, *holds = NULL, *fits = NULL, *expected = NULL;
    PyObject *structure = NULL, *rows = NULL;
    int needs_grad, single = 0, checks = 0, by_epoch = 0;
    if (!PyArg_ParseTuple(args, "OO!O!Oi|OOOO!O!O!ppp", &signature, &PyTuple_Type, &outs, &PyTuple_Type, &carries, &bytes,
                          &needs_grad, &owner, &holds, &fits, &PyTuple_Type, &expected, &PyTuple_Type, &structure,
                          &PyTuple_Type, &rows, &single, &checks, &by_epoch)) return NULL;
    Recorder *r = (Recorder *)type->tp_alloc(type, 0);
    if (r == NULL) return NULL;
    r->signature = Py_NewRef(signature);
    r->outs = Py_NewRef(outs);
    r->bytes = Py_NewRef(bytes);
    r->needs_grad = (char)needs_grad;
    r->n_outs = (char)PyTuple_GET_SIZE(outs);
    r->single = (char)single;
    r->checks = (char)checks;
    r->by_epoch = by_epoch;
    r->owner = Py_XNewRef(owner);
    r->holds = Py_XNewRef(holds);
    r->fits = Py_XNewRef(fits);
    r->expected = Py_XNewRef(expected);
    r->call = (vectorcallfunc)(structure == NULL ? recorder_call : fast_path_call);
    if (PyTuple_GET_SIZE(outs) > MOST_OUTS || PyTuple_GET_SIZE(carries) != PyTuple_GET_SIZE(outs)
        || (structure != NULL && (PyTuple_GET_SIZE(structure) > MOST_ROWS || PyTuple_GET_SIZE(rows) > MOST_ROWS
                                  || PyTuple_GET_SIZE(expected) != PyTuple_GET_SIZE(rows)))) {
        PyErr_SetString(PyExc_ValueError, "more results or rows than a native recorder has room for");
        Py_DECREF(r);
        return NULL;
    }
    for (int i = 0; i < r->n_outs; i++) r->carries[i] = PyTuple_GET_ITEM(carries, i) == Py_True;
    if (structure != NULL) {
        r->n_args = (int)PyTuple_GET_SIZE(structure);
        r->n_rows = (int)PyTuple_GET_SIZE(rows);
        for (int i = 0; i < r->n_args; i++) r->structure[i] = (signed char)PyLong_AsLong(PyTuple_GET_ITEM(structure, i));
        for (int i = 0; i < r->n_rows; i++) r->rows[i] = (signed char)PyLong_AsLong(PyTuple_GET_ITEM(rows, i));
    }
    return (PyObject *)r;
}
static int recorder_traverse(Recorder *r, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(r));
    Py_VISIT(r->signature); Py_VISIT(r->outs); Py_VISIT(r->owner); Py_VISIT(r->holds); Py_VISIT(r->fits); Py_VISIT(r->expected);
    return 0;
}
static int recorder_clear(Recorder *r) {
    Py_CLEAR(r->signature); Py_CLEAR(r->outs); Py_CLEAR(r->bytes); Py_CLEAR(r->owner); Py_CLEAR(r->holds); Py_CLEAR(r->fits);
    Py_CLEAR(r->expected); Py_CLEAR(r->held_at);
    return 0;
}
static void recorder_dealloc(Recorder *r) {
    PyTypeObject *type = Py_TYPE(r);
    PyObject_GC_UnTrack(r);
    recorder_clear(r);
    type->tp_free((PyObject *)r);
    Py_DECREF(type);
}
static PyMemberDef recorder_members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Recorder, call), READONLY}, {NULL}};
static PyType_Slot recorder_slots[] = {
    {Py_tp_new, recorder_new}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, recorder_members},
    {Py_tp_traverse, recorder_traverse}, {Py_tp_clear, recorder_clear}, {Py_tp_dealloc, recorder_dealloc}, {0, NULL}};
#define RECORDER_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL)
static PyType_Spec recorder_spec = {"wayfare.native.Recorder", sizeof(Recorder), 0, RECORDER_FLAGS, recorder_slots};
static PyType_Spec fast_path_spec = {"wayfare.native.FastPath", sizeof(Recorder), 0, RECORDER_FLAGS, recorder_slots};

/* -- methods of lazy tensors, in front of those of record/op_fast_paths.py ----------------------------------------- */

/* The session of this thread, if a method may record there; borrowed from `mode`, which is a new reference. */
static PyObject *session_of(PyObject **mode) {
    *mode = PyObject_GetAttr(STATE, MODE_NAME);
    if (*mode == NULL) { PyErr_Clear(); return NULL; }
    PyObject *executor = PyObject_TypeCheck(*mode, ModeType) ? AT(*mode, M.executor) : NULL;
    if (executor == NULL || Py_TYPE(executor) != SessionType || AT(*mode, M.inference) != Py_False
        || AT(*mode, M.grad) == NULL) Py_CLEAR(*mode);
    return *mode == NULL ? NULL : executor;
}

/* Is it a lazy tensor as it was made? */
static inline int is_lazy(PyObject *t) {
    PyObject *value = Py_TYPE(t) == StandInType ? AT(t, T.handle) : NULL;
    return IS_A(value, ValueType) && IS_A(AT(value, W.row), RowType);
}

/* The native recorder that is known for a key; borrowed; NULL without an error if there is none. */
static Recorder *known_recorder(PyObject *session, PyObject *mode, PyObject *key) {
    PyObject *both = PyObject_GetAttr(session, sOP_FAST_PATHS);
    PyObject *grad = AT(mode, M.grad), *table = both == NULL || grad == NULL ? NULL : PyDict_GetItemWithError(both, grad);
    PyObject *found = table == NULL ? NULL : PyDict_GetItemWithError(table, key);
    Py_XDECREF(both);
    return found != NULL && Py_TYPE(found) == RecorderType ? (Recorder *)found : NULL;
}

/* An operator or a function of one or two lazy tensors: in a Front, `op` is the op. */
static PyObject *lazy_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    PyObject *mode = NULL, *session = NULL, *key = NULL, *made = NULL, *rows[2], *number = NULL;
    int arity = front->arity;
    if (names == NULL && PyVectorcall_NARGS(flags) == arity && Py_TYPE(args[0]) == StandInType
        && (arity == 1 || Py_TYPE(args[1]) == StandInType || PyFloat_CheckExact(args[1]) || PyLong_CheckExact(args[1])))
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
    PyObject *live = PyObject_GetAttr(session, sLIVE);
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

/* set_up_recording(StandIn, Call, Value, Row, RowCopy, RowCopies, Session, Mode, MISSED, check_now, parts, EPOCH) */
static PyObject *set_up_recording(PyObject *self, PyObject *args) {
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOO!", &StandInType, &CallType, &ValueType, &RowType, &RowCopyType, &RowCopiesType,
                          &SessionType, &ModeType, &MISSED, &CHECK_NOW, &PARTS, &PyList_Type, &EPOCH)) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); i++) Py_INCREF(PyTuple_GET_ITEM(args, i));
#define SLOTS(table, type, field, name) if ((table.field = slot_of(type, name)) < 0) return NULL
    if (slots_of_calls() < 0) return NULL;
    SLOTS(R, RowType, shape, "shape"); SLOTS(R, RowType, dtype, "dtype"); SLOTS(R, RowType, is_float, "is_float");
    SLOTS(M, ModeType, executor, "executor"); SLOTS(M, ModeType, grad, "grad"); SLOTS(M, ModeType, inference, "inference");
    SLOTS(M, ModeType, watchers, "watchers");
    SLOTS(K, RowCopyType, data, "data"); SLOTS(K, RowCopyType, row, "row"); SLOTS(K, RowCopyType, source, "source");
    if ((COPIES = slot_of(RowCopiesType, "_copies")) < 0 || (TENSOR_ROLE = slot_of(TensorType, "_role")) < 0) return NULL;
    Py_RETURN_NONE;
}

static int init_record(PyObject *m) {
    PyObject **const names[] = {&sPENDING, &sPENDING_BYTES, &sLIMIT, &sFLUSH, &sHUB, &sCURRENT, &sROW_COPIES, &sOF, &sLIVE, &sOP_FAST_PATHS};
    static const char *const texts[] = {"pending", "pending_bytes", "limit", "flush", "hub", "current", "row_copies", "of", "live", "op_fast_paths"};
    for (int i = 0; i < 10; i++) if ((*names[i] = PyUnicode_InternFromString(texts[i])) == NULL) return -1;
    return add_type(m, "Recorder", &recorder_spec, &RecorderType) || add_type(m, "FastPath", &fast_path_spec, &FastPathType)
        || add_type(m, "LazyMethod", &lazy_spec, &LazyMethodType) ? -1 : 0;
}
