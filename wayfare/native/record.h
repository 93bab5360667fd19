/* Recording in `wf.map`: a call that looks like an earlier one. See wayfare/batch/record. */

static PyTypeObject *RowType, *ModeType;
static PyTypeObject *StandInType, *CallType, *ValueType, *RowCopyType, *RowCopiesType, *SessionType, *RecorderType, *FastPathType, *LazyMethodType;
static PyObject *MISSED, *CHECK_NOW, *PARTS;
static struct { Py_ssize_t signature, inputs, extra, group, example, handles, code, offset, depth, row_id; } C;
static struct { Py_ssize_t call, number, row, needs_grad, is_part, offset, view_of, has_views; } W;
static struct { Py_ssize_t shape, dtype, is_float, layout; } R;
static struct { Py_ssize_t executor, grad, inference, watchers; } M;
static struct { Py_ssize_t data, row, source; } K;
static Py_ssize_t COPIES, TENSOR_ROLE;
static PyObject *EPOCH;
static struct { Py_ssize_t pending, pending_bytes, limit, hub, row_copies, live, op_fast_paths, opaque_fast_paths, callees, no_common_calls; } SESSION;
static struct { Py_ssize_t current, in_order; } HUB;
static PyTypeObject *HubType;
static PyObject *sFLUSH, *sOF, *sON_DEVICE, *sOUTER, *sMEMORY_SHARED;

enum { MOST_OUTS = 8, MOST_ROWS = 16 };
enum { MOST_ROW_BYTES = 64 * 1024 };  /* MAX_ROW_BYTES of record/signature.py */
enum { NEVER_NEEDS, ALWAYS_NEEDS, MAYBE_NEEDS };
enum { IS_VALUE, IS_OUTSIDE, MAY_HAVE_ROLE, ON_DEVICE };

/* Records calls of one signature. A fast path is a recorder that first looks whether the arguments are those it is for. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *signature, *outs, *bytes;
    char carries[MOST_OUTS], needs_grad, n_outs, single, checks;
    /* of a fast path: for each argument the length of a tuple (-1: a constant, -2: one tensor), for each row what it is */
    PyObject *owner, *holds, *tests, *fits, *below, *expected, *constants, *held_at;
    signed char structure[MOST_ROWS], rows[MOST_ROWS];
    int n_args, n_rows, by_epoch;
} Recorder;

static PyObject *lazy_tensor(PyObject *call, Py_ssize_t number, PyObject *row, int needs_grad) {
    PyObject *value = make(&VALUES), *t;
    if (value == NULL) return NULL;
    PyObject *needs = needs_grad ? Py_True : Py_False;
    PUT(value, W.call, Py_NewRef(call));
    PUT(value, W.number, PyLong_FromSsize_t(number));
    PUT(value, W.row, Py_NewRef(row));
    PUT(value, W.needs_grad, Py_NewRef(needs));
    PUT(value, W.is_part, Py_NewRef(Py_False));
    PUT(value, W.offset, PyLong_FromLong(0));
    t = make(&STAND_INS);
    if (t == NULL) { Py_DECREF(value); return NULL; }
    PUT(t, T.handle, value);
    PUT(t, T.requires_grad, Py_NewRef(needs));
    return t;
}

/* A call that was recorded a little while ago gives up its stand-ins if nobody else holds them by now: mostly they were
   arguments of another call meanwhile. They are in the cache still, and so is their memory when it is used again. */
enum { WHILE = 16 };
static inline void give_up_early(PyObject *pending) {
    Py_ssize_t at = PyList_GET_SIZE(pending) - 1 - WHILE;
    PyObject *call = at < 0 ? NULL : PyList_GET_ITEM(pending, at), *handles = IS_A(call, CallType) ? AT(call, C.handles) : NULL;
    if (!IS_A(handles, &PyTuple_Type) || Py_REFCNT(handles) > 1) return;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(handles); k++)
        if (Py_TYPE(PyTuple_GET_ITEM(handles, k)) != StandInType || Py_REFCNT(PyTuple_GET_ITEM(handles, k)) > 1) return;
    replace(call, C.handles, Py_NewRef(Py_None));
}

/* Make the call and its lazy tensors (a tuple; a new reference). Takes over `inputs`, whose rows are `rows`. */
static PyObject *record_call(Recorder *r, PyObject *session, PyObject *inputs, PyObject *const *rows, Py_ssize_t n_rows) {
    PyObject *call = NULL, *made = NULL, *hub = AT(session, SESSION.hub), *total = NULL;
    if (!IS_A(hub, HubType) || AT(hub, HUB.current) == NULL || !IS_A(AT(session, SESSION.pending_bytes), &PyLong_Type)
        || !IS_A(AT(session, SESSION.limit), &PyLong_Type) || !IS_A(AT(session, SESSION.pending), &PyList_Type)) {
        PyErr_SetString(PyExc_TypeError, "record: this is no session in use");
        goto failed;
    }
    if (PyLong_AsLongLong(AT(session, SESSION.pending_bytes)) > PyLong_AsLongLong(AT(session, SESSION.limit))) {
        PyObject *done = PyObject_CallMethodNoArgs(session, sFLUSH);
        if (done == NULL) goto failed;
        Py_DECREF(done);
    }
    int needs = r->needs_grad == ALWAYS_NEEDS;
    for (Py_ssize_t i = 0; r->needs_grad == MAYBE_NEEDS && i < n_rows && !needs; i++) {
        if (Py_TYPE(rows[i]) == ValueType) needs = AT(rows[i], W.needs_grad) == Py_True;
        else if (PyObject_TypeCheck(rows[i], TensorType)) needs = AT(rows[i], T.requires_grad) == Py_True;
    }
    if (PyErr_Occurred()) goto failed;
    call = make(&CALLS);
    made = PyTuple_New(r->n_outs);
    if (call == NULL || made == NULL) goto failed;
    PUT(call, C.signature, Py_NewRef(r->signature));
    PUT(call, C.inputs, Py_NewRef(inputs));
    PUT(call, C.extra, Py_NewRef(Py_None));
    PUT(call, C.group, Py_NewRef(Py_None));
    PUT(call, C.example, Py_NewRef(AT(hub, HUB.current)));
    for (int i = 0; i < r->n_outs; i++) {
        PyObject *t = lazy_tensor(call, i, PyTuple_GET_ITEM(r->outs, i), needs && r->carries[i]);
        if (t == NULL) goto failed;
        PyTuple_SET_ITEM(made, i, t);
    }
    if (note_line(call, C.code, C.offset) < 0) goto failed;
    if (PyList_Append(AT(session, SESSION.pending), call) < 0) goto failed;  /* `flush` may have made a new list */
    PyObject_GC_UnTrack(made);
    PUT(call, C.handles, Py_NewRef(made));  /* not before: whoever runs or drops it takes it away again */
    give_up_early(AT(session, SESSION.pending));
    total = PyNumber_Add(AT(session, SESSION.pending_bytes), r->bytes);
    if (total == NULL) goto failed;
    replace(session, SESSION.pending_bytes, Py_NewRef(total));
    goto end;
failed:
    Py_CLEAR(made);
end:
    Py_XDECREF(inputs); Py_XDECREF(call); Py_XDECREF(total);
    return made;
}

/* record(session, rows, depth) */
static PyObject *recorder_call(Recorder *r, PyObject *const *args, size_t flags, PyObject *names) {
    if (names != NULL || PyVectorcall_NARGS(flags) != 3) { PyErr_SetString(PyExc_TypeError, "record(session, rows, depth)"); return NULL; }
    if (Py_TYPE(args[0]) != SessionType) { PyErr_SetString(PyExc_TypeError, "record: this is no session"); return NULL; }
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
    copy = PyErr_Occurred() ? NULL : make(&ROW_COPIES);
    if (copy != NULL) {
        PUT(copy, K.data, PyBytes_FromStringAndSize(PyArray_DATA(x), PyArray_NBYTES(x)));
        PUT(copy, K.row, Py_NewRef(row));
        PUT(copy, K.source, Py_NewRef(t));
        if (AT(copy, K.data) == NULL || PyDict_SetItem(table, id, copy) < 0) Py_CLEAR(copy);
    }
    Py_XDECREF(id);
    return copy;
}

/* Do the examples of a hub run in any order? */
static int in_any_order(PyObject *hub) {
    return IS_A(hub, HubType) && IS_A(AT(hub, HUB.in_order), &PyUnicode_Type) && PyUnicode_GET_LENGTH(AT(hub, HUB.in_order)) == 0;
}

/* An ordinary tensor as a row, if it is a row of one example (Session.is_own_row) that has the shape and dtype of `row`. NULL
   without an error: Python must look at it. */
static PyObject *own_row(PyObject *session, PyObject *t, PyObject *row) {
    PyArrayObject *x = ARRAY(AT(t, T.array));
    if (Py_TYPE(t) != TensorType || !is_usual(t) || AT(t, T.requires_grad) != Py_False || AT(t, T.edge) != Py_None
        || AT(t, TENSOR_ROLE) != NULL || AT(row, R.layout) != Py_None || (PyObject *)PyArray_DESCR(x) != AT(row, R.dtype)
        || PyArray_NDIM(x) == 0 || !PyArray_IS_C_CONTIGUOUS(x) || PyArray_NBYTES(x) > MOST_ROW_BYTES
        || !has_shape(x, AT(row, R.shape))) return NULL;
    PyObject *hub = AT(session, SESSION.hub), *copies = AT(session, SESSION.row_copies);
    if (copies == NULL || !in_any_order(hub)) return NULL;
    Py_INCREF(copies);
    PyObject *found = row_copy(copies, t, x, row);
    Py_DECREF(copies);
    return found;
}

/* A tensor from outside as a row: no weight, no history, of the expected shape and dtype. NULL without an error: missed. */
static PyObject *outside_row(PyObject *session, PyObject *t, PyObject *expected, int may_have_role) {
    if (Py_TYPE(t) != TensorType || AT(t, T.requires_grad) != Py_False || AT(t, T.view) != Py_None) return NULL;
    if (may_have_role && AT(t, TENSOR_ROLE) != NULL) return NULL;
    PyArrayObject *x = ARRAY(AT(t, T.array));
    if (!IS_ARRAY(x) || (PyObject *)PyArray_DESCR(x) != AT(expected, R.dtype) || !PyArray_IS_C_CONTIGUOUS(x)) return NULL;
    if (!has_shape(x, AT(expected, R.shape))) return NULL;
    PyObject *copies = Py_XNewRef(AT(session, SESSION.row_copies));
    PyObject *row = copies == NULL ? NULL : row_copy(copies, t, x, expected);
    Py_XDECREF(copies);
    return row;
}

/* The same for a tensor on another device than the CPU: Python looks at its array, and makes the row. */
static PyObject *device_row(PyObject *session, PyObject *t, PyObject *expected) {
    if (Py_TYPE(t) != TensorType || AT(t, T.requires_grad) != Py_False || AT(t, T.view) != Py_None || AT(t, TENSOR_ROLE) != NULL) return NULL;
    PyObject *copies = Py_XNewRef(AT(session, SESSION.row_copies));
    PyObject *row = copies == NULL ? NULL : PyObject_CallMethodObjArgs(copies, sON_DEVICE, t, expected, NULL);
    Py_XDECREF(copies);
    if (row == Py_None) Py_CLEAR(row);
    return row;
}

/* Are these integers at least 0, and less than an attribute of the owner? 0: that must be found out in another way. */
static int are_below(Recorder *r, PyObject *copy) {
    if (r->below == Py_None || !IS_A(AT(copy, K.row), RowType) || !IS_A(AT(copy, K.data), &PyBytes_Type)) return 0;
    PyArray_Descr *dtype = (PyArray_Descr *)AT(AT(copy, K.row), R.dtype);
    if (dtype == NULL || dtype->type_num != NPY_INT64) return 0;
    PyObject *most = PyObject_GetAttr(r->owner, r->below);
    npy_int64 end = most != NULL && PyLong_CheckExact(most) ? PyLong_AsLongLong(most) : 0;
    Py_XDECREF(most);
    PyErr_Clear();
    const npy_int64 *number = (const npy_int64 *)PyBytes_AS_STRING(AT(copy, K.data));
    Py_ssize_t n = PyBytes_GET_SIZE(AT(copy, K.data)) / sizeof(npy_int64), good = 0;
    for (Py_ssize_t i = 0; i < n; i++) good += number[i] >= 0 && number[i] < end;
    return n > 0 && good == n;
}

/* The results of a call with these arguments, or MISSED. */
static PyObject *by_one_fast_path(Recorder *r, PyObject *session, PyObject *const *args, Py_ssize_t given) {
    PyObject *flat[MOST_ROWS];
    if (given != r->n_args || Py_TYPE(session) != SessionType) return Py_NewRef(MISSED);
    int n = 0;
    for (int i = 0; i < r->n_args; i++) {
        PyObject *part = args[i];
        int how = r->structure[i];
        if (how == -1) {
            PyObject *constant = PyTuple_GET_ITEM(r->constants, i);
            if (part == constant) continue;
            int equal = Py_TYPE(part) == Py_TYPE(constant) ? PyObject_RichCompareBool(part, constant, Py_EQ) : 0;
            if (equal < 1) return equal < 0 ? NULL : Py_NewRef(MISSED);
        }
        else if (how == -2) flat[n++] = part;
        else {
            if (!PyTuple_CheckExact(part) || PyTuple_GET_SIZE(part) != how) return Py_NewRef(MISSED);
            for (int k = 0; k < how; k++) flat[n++] = PyTuple_GET_ITEM(part, k);
        }
    }
    PyObject *rows = PyTuple_New(n), *result = NULL;
    if (rows == NULL) return NULL;
    PyObject_GC_UnTrack(rows);  /* as the call that will hold it */
    for (int i = 0; i < n; i++) {
        PyObject *expected = PyTuple_GET_ITEM(r->expected, i), *row = NULL;
        if (r->rows[i] == IS_VALUE) {
            if (Py_TYPE(flat[i]) == StandInType) {
                PyObject *value = AT(flat[i], T.handle);
                if (IS_A(value, ValueType) && AT(value, W.row) == expected) row = Py_NewRef(value);
            }
        } else if (r->rows[i] == ON_DEVICE) row = device_row(session, flat[i], expected);
        else row = outside_row(session, flat[i], expected, r->rows[i] == MAY_HAVE_ROLE);
        if (row == NULL) {
            Py_DECREF(rows);
            return PyErr_Occurred() ? NULL : Py_NewRef(MISSED);
        }
        PyTuple_SET_ITEM(rows, i, row);
    }
    /* What a guard looks at in modules still holds if no module has changed since it did; `tests` are about all else. */
    PyObject *epoch = r->by_epoch || r->tests != Py_None ? PyList_GET_ITEM(EPOCH, 0) : NULL;
    int still = epoch != NULL && epoch == r->held_at;
    if (still && r->tests != Py_None) still = all_hold((Tests *)r->tests);
    if (still < 1) {
        if (still < 0) PyErr_Clear();
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
        int copied = r->fits != Py_None && IS_A(first, RowCopyType) && AT(first, K.source) != NULL;
        int good = copied && are_below(r, first);
        if (copied && !good) fits = PyObject_CallFunctionObjArgs(r->fits, r->owner, AT(first, K.source), NULL);
        if (fits != NULL) good = PyObject_IsTrue(fits);
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

/* fast_path(session, args) */
static PyObject *fast_path_call(Recorder *r, PyObject *const *given, size_t flags, PyObject *names) {
    if (names != NULL || PyVectorcall_NARGS(flags) != 2 || !PyTuple_Check(given[1])) { PyErr_SetString(PyExc_TypeError, "fast_path(session, args)"); return NULL; }
    return by_one_fast_path(r, given[0], &PyTuple_GET_ITEM(given[1], 0), PyTuple_GET_SIZE(given[1]));
}

/* Recorder(signature, outs, carries, bytes, needs_grad) and
   FastPath(signature, outs, carries, bytes, needs_grad, owner, holds, fits, expected, structure, rows, single, checks, by_epoch,
            constants, below, tests), where constants are None, a whole number or a string for each argument (None for tensors); `below` is the name of an
   attribute of the owner, if integers that are less than that fit, or None; `tests` are GuardTests or None */
static PyObject *recorder_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    PyObject *signature, *outs, *carries, *bytes, *owner = NULL, *holds = NULL, *fits = NULL, *expected = NULL;
    PyObject *structure = NULL, *rows = NULL, *constants = NULL, *below = NULL, *tests = NULL;
    int needs_grad, single = 0, checks = 0, by_epoch = 0;
    if (!PyArg_ParseTuple(args, "OO!O!Oi|OOOO!O!O!pppO!OO", &signature, &PyTuple_Type, &outs, &PyTuple_Type, &carries, &bytes,
                          &needs_grad, &owner, &holds, &fits, &PyTuple_Type, &expected, &PyTuple_Type, &structure,
                          &PyTuple_Type, &rows, &single, &checks, &by_epoch, &PyTuple_Type, &constants, &below, &tests)) return NULL;
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
    r->tests = Py_XNewRef(tests);
    r->fits = Py_XNewRef(fits);
    r->below = Py_XNewRef(below);
    r->expected = Py_XNewRef(expected);
    r->constants = Py_XNewRef(constants);
    r->call = (vectorcallfunc)(structure == NULL ? recorder_call : fast_path_call);
    if (PyTuple_GET_SIZE(outs) > MOST_OUTS || PyTuple_GET_SIZE(carries) != PyTuple_GET_SIZE(outs)
        || (structure != NULL && (tests == NULL || (tests != Py_None && Py_TYPE(tests) != TestsType) || PyTuple_GET_SIZE(structure) > MOST_ROWS || PyTuple_GET_SIZE(rows) > MOST_ROWS
                                  || PyTuple_GET_SIZE(expected) != PyTuple_GET_SIZE(rows) || constants == NULL
                                  || PyTuple_GET_SIZE(constants) != PyTuple_GET_SIZE(structure)))) {
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
    Py_VISIT(r->signature); Py_VISIT(r->outs); Py_VISIT(r->owner); Py_VISIT(r->holds); Py_VISIT(r->tests); Py_VISIT(r->fits); Py_VISIT(r->expected);
    return 0;
}
static int recorder_clear(Recorder *r) {
    Py_CLEAR(r->signature); Py_CLEAR(r->outs); Py_CLEAR(r->bytes); Py_CLEAR(r->owner); Py_CLEAR(r->holds); Py_CLEAR(r->tests); Py_CLEAR(r->fits); Py_CLEAR(r->below);
    Py_CLEAR(r->expected); Py_CLEAR(r->constants); Py_CLEAR(r->held_at);
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
