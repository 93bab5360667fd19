/* Methods that return a view: `x[i]`, `view`, `expand`, `transpose`, … What such a call does depends on its arguments and
   on the shape and strides of the tensor alone, so it is learnt from the Python function and repeated without it. */

/* The attributes of a view op, and where the view lies in an array of this shape and these strides. A dict for all who
   look at it. One for every call that is known; they make a list for each set of arguments. */
typedef struct ViewAttrs {
    PyDictObject dict;
    PyObject *op, *shape, *spec;  /* the op, the shape of the view, the Spec of the input */
    struct ViewAttrs *next;
    PyArray_Descr *descr;
    int in_dims, out_dims, in_writeable, out_writeable, plain;
    npy_intp in_shape[MOST_DIMS], in_strides[MOST_DIMS], out_shape[MOST_DIMS], out_strides[MOST_DIMS], offset;
} ViewAttrs;
static PyTypeObject *ViewAttrsType, *ViewMethodType;

static int attrs_traverse(PyObject *self, visitproc visit, void *arg) {
    ViewAttrs *own = (ViewAttrs *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(own->op); Py_VISIT(own->next);
    return PyDict_Type.tp_traverse(self, visit, arg);
}
static int attrs_clear(PyObject *self) {
    ViewAttrs *own = (ViewAttrs *)self;
    Py_CLEAR(own->op); Py_CLEAR(own->shape); Py_CLEAR(own->spec); Py_CLEAR(own->next); Py_CLEAR(own->descr);
    return PyDict_Type.tp_clear(self);
}
static void attrs_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ViewAttrs *own = (ViewAttrs *)self;
    PyObject_GC_UnTrack(self);
    Py_CLEAR(own->op); Py_CLEAR(own->shape); Py_CLEAR(own->spec); Py_CLEAR(own->next); Py_CLEAR(own->descr);
    PyObject_GC_Track(self);  /* as the dealloc of dict expects it */
    PyDict_Type.tp_dealloc(self);
    Py_DECREF(type);
}
static PyObject *attrs_reduce(PyObject *self, PyObject *unused) {  /* a copy or a pickle is a plain dict */
    PyObject *plain = PyDict_Copy(self);
    return plain == NULL ? NULL : Py_BuildValue("O(N)", (PyObject *)&PyDict_Type, plain);
}
static PyMethodDef attrs_methods[] = {{"__reduce_ex__", (PyCFunction)attrs_reduce, METH_O}, {NULL}};
static PyType_Slot attrs_slots[] = {{Py_tp_traverse, attrs_traverse}, {Py_tp_clear, attrs_clear}, {Py_tp_dealloc, attrs_dealloc},
                                    {Py_tp_methods, attrs_methods}, {0, NULL}};
static PyType_Spec attrs_spec = {"wayfare.native.ViewAttrs", sizeof(ViewAttrs), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, attrs_slots};

enum { MOST_KNOWN = 4096, MOST_LAYOUTS = 16 };

static inline int fits(ViewAttrs *known, PyArrayObject *x) {
    int n = PyArray_NDIM(x);
    return known->descr == PyArray_DESCR(x) && known->in_dims == n && known->in_writeable == !!PyArray_ISWRITEABLE(x)
        && memcmp(known->in_shape, PyArray_DIMS(x), sizeof(npy_intp) * n) == 0
        && memcmp(known->in_strides, PyArray_STRIDES(x), sizeof(npy_intp) * n) == 0;
}

/* The key of arguments: exact integers, None, Ellipsis, slices and tuples of these. 1: a new reference; 0: something
   else, which Python must look at; -1: an error. */
static int key_of(PyObject *value, PyObject **key) {
    if (PyLong_CheckExact(value) || value == Py_None || value == Py_Ellipsis) { *key = Py_NewRef(value); return 1; }
    if (PySlice_Check(value)) {
        PySliceObject *s = (PySliceObject *)value;
        PyObject *parts[3] = {s->start, s->stop, s->step};
        for (int i = 0; i < 3; i++) if (parts[i] != Py_None && !PyLong_CheckExact(parts[i])) return 0;
        /* No tuple among the arguments has a type in it. */
        *key = PyTuple_Pack(4, (PyObject *)&PySlice_Type, parts[0], parts[1], parts[2]);
        return *key == NULL ? -1 : 1;
    }
    if (!PyTuple_Check(value)) return 0;
    Py_ssize_t n = PyTuple_GET_SIZE(value);
    int plain = PyTuple_CheckExact(value);
    for (Py_ssize_t i = 0; i < n && plain; i++) {
        PyObject *part = PyTuple_GET_ITEM(value, i);
        plain = PyLong_CheckExact(part) || part == Py_None || part == Py_Ellipsis;
    }
    if (plain) { *key = Py_NewRef(value); return 1; }
    PyObject *made = PyTuple_New(n);
    if (made == NULL) return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *part = NULL;
        int how = key_of(PyTuple_GET_ITEM(value, i), &part);
        if (how != 1) { Py_DECREF(made); return how; }
        PyTuple_SET_ITEM(made, i, part);
    }
    *key = made;
    return 1;
}

/* Make the view that is known. */
static PyObject *repeat(ViewAttrs *known, PyObject *t, int mode) {
    PyArrayObject *x = ARRAY(AT(t, T.array));
    Py_INCREF(known->descr);
    PyObject *array = PyArray_NewFromDescr(
        &PyArray_Type, known->descr, known->out_dims, known->out_shape, known->out_strides, PyArray_BYTES(x) + known->offset,
        known->out_writeable ? NPY_ARRAY_WRITEABLE : 0, NULL);
    if (array == NULL) return NULL;
    if (PyArray_SetBaseObject(ARRAY(array), Py_NewRef((PyObject *)x)) < 0) { Py_DECREF(array); return NULL; }
    PyObject *made = new_tensor(array);
    if (made == NULL) return NULL;
    PyObject *view = new_view(t, AT(known->op, O.name), (PyObject *)known);
    if (view == NULL) { Py_DECREF(made); return NULL; }
    replace(made, T.view, view);
    if (mode == 0 && AT(t, T.requires_grad) == Py_True) {
        Core *core = core_of(known->op);
        if (core == NULL || (core->vjp != Py_None
            && record_node(made, core, (PyObject *)known, &t, 1, 1, known->shape, known->spec) < 0)) { Py_DECREF(made); return NULL; }
    }
    return made;
}

/* What the Python function did, if it was one view op on this tensor; else None (a copy, the tensor itself). */
static PyObject *learn(PyObject *t, PyObject *made) {
    PyObject *view = Py_TYPE(made) == TensorType ? AT(made, T.view) : NULL, *of = AT(t, T.view);
    if (view == NULL || view == Py_None || made == t || Py_TYPE(view) != ViewType) Py_RETURN_NONE;
    PyArrayObject *x = ARRAY(AT(t, T.array)), *y = ARRAY(AT(made, T.array));
    PyObject *before = AT(view, V.before);
    int once = of == Py_None ? before == Py_None && AT(view, V.base) == t
        : AT(view, V.base) == AT(of, V.base) && IS_A(before, &PyTuple_Type) && PyTuple_GET_SIZE(before) == 3 && PyTuple_GET_ITEM(before, 0) == AT(of, V.op)
          && PyTuple_GET_ITEM(before, 1) == AT(of, V.attrs) && PyTuple_GET_ITEM(before, 2) == AT(of, V.before);
    if (!once || !IS_ARRAY(y) || PyArray_DESCR(x) != PyArray_DESCR(y) || PyArray_NDIM(x) > MOST_DIMS
        || PyArray_NDIM(y) > MOST_DIMS || PyArray_SIZE(y) == 0 
        || !IS_A(AT(view, V.attrs), &PyDict_Type) || !IS_A(AT(view, V.op), &PyUnicode_Type)) Py_RETURN_NONE;
    PyObject *op = PyDict_GetItemWithError(REGISTRY, AT(view, V.op)), *node = AT(made, T.edge);
    if (op == NULL || (node != Py_None && (!IS_A(node, NodeType) || AT(node, N.op) != op))) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    ViewAttrs *known = (ViewAttrs *)PyObject_CallOneArg((PyObject *)ViewAttrsType, AT(view, V.attrs));
    if (known == NULL) return NULL;
    known->op = Py_NewRef(op);
    known->shape = shape_of(y);
    known->spec = spec_of((PyObject *)x);
    known->descr = PyArray_DESCR(x);
    Py_INCREF(known->descr);
    known->in_dims = PyArray_NDIM(x);
    known->out_dims = PyArray_NDIM(y);
    known->in_writeable = !!PyArray_ISWRITEABLE(x);
    known->out_writeable = !!PyArray_ISWRITEABLE(y);
    known->plain = is_plain(x);
    known->offset = PyArray_BYTES(y) - PyArray_BYTES(x);
    memcpy(known->in_shape, PyArray_DIMS(x), sizeof(npy_intp) * known->in_dims);
    memcpy(known->in_strides, PyArray_STRIDES(x), sizeof(npy_intp) * known->in_dims);
    memcpy(known->out_shape, PyArray_DIMS(y), sizeof(npy_intp) * known->out_dims);
    memcpy(known->out_strides, PyArray_STRIDES(y), sizeof(npy_intp) * known->out_dims);
    if (known->shape == NULL || known->spec == NULL) { Py_DECREF(known); return NULL; }
    return (PyObject *)known;
}

static PyObject *viewing_session(PyObject *t);  /* in lazy.h */
static int note_view(PyObject *session, PyObject *t);

/* In a Front of a view method, `op` is the table: key → the first ViewAttrs of a list. */
static PyObject *view_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    int mode = 2, how = 0;
    PyObject *key = NULL, *session = NULL;
    if (names == NULL && given > 0 && Py_TYPE(args[0]) == TensorType && is_usual(args[0])) {
        mode = mode_now();
        if (mode == 2 && (session = viewing_session(args[0])) != NULL) mode = 1;
    }
    if (mode < 0) return NULL;
    if (mode < 2) {
        if (given == 2) how = key_of(args[1], &key);
        else {
            key = PyTuple_New(given);  /* the last part tells f(1, 2) from f((1, 2)) */
            if (key == NULL) { Py_XDECREF(session); return NULL; }
            how = 1;
            for (Py_ssize_t i = 1; i < given && how == 1; i++) {
                PyObject *part = NULL;
                how = key_of(args[i], &part);
                if (how == 1) PyTuple_SET_ITEM(key, i - 1, part);
            }
            PyTuple_SET_ITEM(key, given - 1, Py_NewRef((PyObject *)&PyTuple_Type));
            if (how != 1) Py_CLEAR(key);
        }
        if (how < 0) { Py_XDECREF(session); return NULL; }
    }
    if (how != 1) { Py_XDECREF(session); return PyObject_Vectorcall(front->general, args, flags, names); }
    PyArrayObject *x = ARRAY(AT(args[0], T.array));
    PyObject *found = PyDict_GetItemWithError(front->op, key), *result = NULL;
    int layouts = 0;
    if (found == NULL && PyErr_Occurred()) goto end;
    for (ViewAttrs *known = (ViewAttrs *)found; known != NULL; known = known->next, layouts++)
        if (fits(known, x)) {
            Py_INCREF(known);
            result = repeat(known, args[0], mode);
            Py_DECREF(known);
            if (session != NULL && result != NULL && note_view(session, args[0]) < 0) Py_CLEAR(result);
            goto end;
        }
    result = PyObject_Vectorcall(front->general, args, flags, names);
    if (result == NULL || (mode != 0 && session == NULL) || !is_usual(args[0]) || ARRAY(AT(args[0], T.array)) != x) goto end;
    PyObject *learnt = learn(args[0], result);
    if (learnt == NULL) { Py_CLEAR(result); goto end; }
    if (learnt != Py_None) {
        if (PyDict_GET_SIZE(front->op) >= MOST_KNOWN) PyDict_Clear(front->op);
        found = PyDict_GetItemWithError(front->op, key);  /* the call may have changed the table */
        if (found != NULL && layouts < MOST_LAYOUTS) ((ViewAttrs *)learnt)->next = (ViewAttrs *)Py_NewRef(found);
        if (PyDict_SetItem(front->op, key, learnt) < 0) Py_CLEAR(result);
    }
    Py_DECREF(learnt);
end:
    Py_XDECREF(key);
    Py_XDECREF(session);
    return result;
}

/* ViewMethod(general) */
static PyObject *view_method_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    PyObject *general;
    if (!PyArg_ParseTuple(args, "O", &general)) return NULL;
    Front *front = (Front *)new_front(type, general);
    if (front == NULL) return NULL;
    front->call = (vectorcallfunc)view_call;
    if ((front->op = PyDict_New()) == NULL) Py_CLEAR(front);
    return (PyObject *)front;
}
static PyType_Slot view_slots[] = FRONT_SLOTS(view_method_new);
static PyType_Spec view_spec = {"wayfare.native.ViewMethod", sizeof(Front), 0, FRONT_FLAGS, view_slots};

static int init_views(PyObject *m) {
    PyObject *bases = PyTuple_Pack(1, (PyObject *)&PyDict_Type);
    ViewAttrsType = bases == NULL ? NULL : (PyTypeObject *)PyType_FromSpecWithBases(&attrs_spec, bases);
    Py_XDECREF(bases);
    return ViewAttrsType == NULL || add_type(m, "ViewMethod", &view_spec, &ViewMethodType) < 0 ? -1 : 0;
}
