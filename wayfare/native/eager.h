/* Eager ops: `apply1`, `apply2` and `apply3`, and the methods and operators in front of them. */

static inline PyObject *edge_of(PyObject *t) {
    PyObject *edge = AT(t, T.edge);
    return Py_NewRef(edge != NULL && edge != Py_None ? edge : t);
}

/* Is it an ordinary tensor whose history is up to date, and which may be kept? Else Python must look at it. */
static inline int is_settled(PyObject *t) {
    PyObject *view = AT(t, T.view), *needs = AT(t, T.requires_grad);
    if (AT(t, T.extras) != Py_None || view == NULL || AT(t, T.edge) == NULL) return 0;
    if (needs != Py_False && needs != Py_True) return 0;
    if (view == Py_None) return 1;
    if (Py_TYPE(view) != ViewType) return 0;
    PyObject *base = AT(view, V.base);  /* as in `renew`: nothing to do if the base was not written since */
    return IS_A(base, TensorType) && AT(base, T.edge) != NULL && AT(base, T.view) == Py_None && AT(base, T.extras) == Py_None
        && AT(base, T.edge) == AT(view, V.base_edge);
}
static inline int is_usual(PyObject *t) { return IS_ARRAY(AT(t, T.array)) && is_settled(t); }

static PyObject *new_tensor(PyObject *array) {  /* takes over the array; requires no gradient */
    PyObject *t = TensorType->tp_alloc(TensorType, 0);
    if (t == NULL) { Py_DECREF(array); return NULL; }
    PUT(t, T.array, array);
    PUT(t, T.edge, Py_NewRef(Py_None));
    PUT(t, T.grad, Py_NewRef(Py_None));
    PUT(t, T.view, Py_NewRef(Py_None));
    PUT(t, T.extras, Py_NewRef(Py_None));
    PUT(t, T.requires_grad, Py_NewRef(Py_False));
    return t;
}

static int has_shape(PyArrayObject *x, PyObject *shape) {
    if (!IS_A(shape, &PyTuple_Type) || PyTuple_GET_SIZE(shape) != PyArray_NDIM(x)) return 0;
    for (int i = 0; i < PyArray_NDIM(x); i++) {
        PyObject *size = PyTuple_GET_ITEM(shape, i);
        if (!PyLong_CheckExact(size) || PyLong_AsSsize_t(size) != PyArray_DIM(x, i)) return 0;
    }
    return 1;
}

/* Record the node of a computed tensor. `shape` and `spec` may be NULL, or what is known of the output and of the only
   input (borrowed). */
static int record_node(PyObject *t, Core *core, PyObject *attrs, PyObject *const *inputs, int arity, int needs,
                       PyObject *shape, PyObject *spec) {
    signed char *keep = keeps_of(core, needs, arity);
    if (keep == NULL) return -1;
    PyObject *node = NodeType->tp_alloc(NodeType, 0), *out = AT(t, T.array);
    if (node == NULL) return -1;
    replace(t, T.edge, node);
    replace(t, T.requires_grad, Py_NewRef(Py_True));
    PyObject *edges = PyTuple_New(arity), *kept = PyTuple_New(arity + 1);
    PUT(node, N.op, Py_NewRef(core->op));
    PUT(node, N.attrs, Py_NewRef(attrs));
    PUT(node, N.edges, edges);
    PUT(node, N.kept, kept);
    PUT(node, N.extras, Py_NewRef(Py_None));
    PUT(node, N.dtype, dtype_of(out));
    if (edges == NULL || kept == NULL || AT(node, N.dtype) == NULL) return -1;
    for (int i = 0; i < arity; i++) PyTuple_SET_ITEM(edges, i, needs >> i & 1 ? edge_of(inputs[i]) : Py_NewRef(Py_None));
    for (int i = 0; i <= arity; i++) {
        PyObject *from = i == 0 ? out : AT(inputs[i - 1], T.array), *what;
        if (!IS_ARRAY(from) && !IS_DEVICE(from)) { PyErr_SetString(PyExc_AttributeError, "a tensor lost its array while an op ran"); return -1; }
        if (keep[i] == VALUE) what = Py_NewRef(from);
        else if (keep[i] == DROP) what = Py_NewRef(Py_None);
        else what = i == 1 && spec != NULL ? Py_NewRef(spec) : spec_of(from);
        if (what == NULL) return -1;
        PyTuple_SET_ITEM(kept, i, what);
    }
    if (shape == NULL && needs & 1 && IS_ARRAY(out)) {  /* one shape for the nodes of a chain */
        PyObject *before = AT(inputs[0], T.edge);
        if (IS_A(before, NodeType) && has_shape(ARRAY(out), AT(before, N.shape))) shape = AT(before, N.shape);
    }
    PUT(node, N.shape, shape != NULL ? Py_NewRef(shape) : any_shape(out));
    PUT(node, N.number, Py_TYPE(CLOCK)->tp_iternext(CLOCK));
    if (AT(node, N.shape) == NULL || AT(node, N.number) == NULL) return -1;
    return note_line(node, N.code, N.offset);
}

static PyObject *new_view(PyObject *source, PyObject *op, PyObject *attrs) {
    PyObject *of = AT(source, T.view), *edge = filled(source, T.edge, "_edge");
    if (op == NULL || edge == NULL || (of != Py_None && (!IS_A(of, ViewType)
        || filled(of, V.base, "base") == NULL || filled(of, V.base_edge, "base_edge") == NULL || filled(of, V.op, "_op") == NULL
        || filled(of, V.attrs, "_attrs") == NULL || filled(of, V.before, "_before") == NULL))) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_AttributeError, "an op or a view has no such attribute");
        return NULL;
    }
    PyObject *view = ViewType->tp_alloc(ViewType, 0);
    if (view == NULL) return NULL;
    PUT(view, V.op, Py_NewRef(op));
    PUT(view, V.attrs, Py_NewRef(attrs));
    if (of == Py_None) {
        PUT(view, V.base, Py_NewRef(source));
        PUT(view, V.base_edge, Py_NewRef(edge));
        PUT(view, V.before, Py_NewRef(Py_None));
    } else {
        PUT(view, V.base, Py_NewRef(AT(of, V.base)));
        PUT(view, V.base_edge, Py_NewRef(AT(of, V.base_edge)));
        PyObject *before = PyTuple_Pack(3, AT(of, V.op), AT(of, V.attrs), AT(of, V.before));
        PUT(view, V.before, before);
        if (before == NULL) { Py_DECREF(view); return NULL; }
    }
    return view;
}

enum { DONE, NOT_USUAL, FAILED };
static int on_device(PyObject *const *inputs, int arity);
static int run_on_device(Core *core, PyObject *const *inputs, int arity, PyObject *attrs, int mode, PyObject **result);

/* Run an op on one to three ordinary tensors; `attrs` may be NULL. NOT_USUAL: nothing has happened that could not
   happen again, and Python must do it all. */
static int run_op(Core *core, PyObject *const *inputs, int arity, PyObject *attrs, PyObject **result) {
    int mode = mode_now(), needs = 0;
    if (mode != 0 && mode != 1) return mode < 0 ? FAILED : NOT_USUAL;
    if (on_device(inputs, arity)) return run_on_device(core, inputs, arity, attrs, mode, result);
    PyObject *arrays[MOST_INPUTS + 1];
    for (int i = 0; i < arity; i++) {
        if (!is_usual(inputs[i])) return NOT_USUAL;
        if (IS_BFLOAT16(ARRAY(AT(inputs[i], T.array))) && !core->view) return NOT_USUAL;  /* computed in float32 */
        arrays[i + 1] = AT(inputs[i], T.array);
        if (AT(inputs[i], T.requires_grad) == Py_True) needs |= 1 << i;
    }
    if (PyArray_SIZE(ARRAY(arrays[1])) >= core->large_from) return NOT_USUAL;
    PyObject *out = NULL;
    if (attrs == NULL) {
        if (core->dot && arity == 2) out = small_dot(core, ARRAY(arrays[1]), ARRAY(arrays[2]));
        else if (arity < 3) out = direct(core, ARRAY(arrays[1]), arity == 2 ? ARRAY(arrays[2]) : NULL);
    }
    if (out == NULL && !PyErr_Occurred()) {
        if (core->is_ufunc) {  /* from a frame of the library: NumPy's warnings about numbers are filtered there */
            if (attrs != NULL) return NOT_USUAL;
            arrays[0] = core->forward;
            out = PyObject_Vectorcall(CALL, arrays, arity + 1, NULL);
        } else out = PyObject_VectorcallDict(core->forward, arrays + 1, arity, attrs);
    }
    if (out == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return FAILED;
        PyErr_Clear();  /* Python runs it again, and has the sentence for it */
        return NOT_USUAL;
    }
    if (!PyArray_CheckExact(out)) {
        if (PyTuple_Check(out) || PyList_Check(out)) { Py_DECREF(out); return NOT_USUAL; }
        PyObject *made = PyArray_FromAny(out, NULL, 0, 0, 0, NULL);
        Py_DECREF(out);
        if (made == NULL) return FAILED;
        out = made;
    }
    int shares = 0;
    if (core->view) {
        PyObject *base = PyArray_BASE(ARRAY(out));
        shares = base != NULL && (base == arrays[1] || base == PyArray_BASE(ARRAY(arrays[1])));
        if (shares && !PyArray_CheckExact(base)) { Py_DECREF(out); return NOT_USUAL; }  /* maybe a Lease */
    }
    int is_float = PyTypeNum_ISFLOAT(PyArray_TYPE(ARRAY(out))) || IS_BFLOAT16(ARRAY(out));
    PyObject *t = *result = new_tensor(out);
    if (t == NULL) return FAILED;
    if (shares) {
        PyObject *view = new_view(inputs[0], AT(core->op, O.name), attrs == NULL ? NO_ATTRS : attrs);
        if (view == NULL) { Py_DECREF(t); return FAILED; }
        replace(t, T.view, view);
    }
    if (mode == 0 && needs && core->vjp != Py_None && (is_float || (attrs == NULL && arity < 3))
        && record_node(t, core, attrs == NULL ? NO_ATTRS : attrs, inputs, arity, needs, NULL, NULL) < 0) {
        Py_DECREF(t);
        return FAILED;
    }
    return DONE;
}

/* -- apply1, apply2, apply3: callables with the Python function that they stand in front of ----------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *op, *general, *number, *tensor, *tensor_dtype;
    vectorcallfunc call;
    char arity, reverse, number_first, floats_only, numbers;
} Front;

static PyObject *apply_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    int arity = front->arity;
    PyObject *attrs = arity == 1 && given == 3 ? args[2] : NULL;
    if (names == NULL && given == arity + 1 + (attrs != NULL) && Py_TYPE(args[0]) == OpType) {
        int usual = attrs == NULL || PyDict_Check(attrs);
        for (int i = 1; i <= arity; i++) usual &= Py_TYPE(args[i]) == TensorType;
        if (usual) {
            if (attrs != NULL && PyDict_GET_SIZE(attrs) == 0) attrs = NULL;
            Core *core = core_of(args[0]);
            if (core == NULL) return NULL;
            PyObject *made = NULL;
            Py_INCREF(core);  /* its forward may replace a part of the record */
            int how = run_op(core, args + 1, arity, attrs, &made);
            Py_DECREF(core);
            if (how != NOT_USUAL) return how == DONE ? made : NULL;
        }
    }
    return PyObject_Vectorcall(front->general, args, flags, names);
}

/* A method or an operator of Tensor. */
static PyObject *method_call(Front *front, PyObject *const *args, size_t flags, PyObject *names) {
    if (names == NULL && PyVectorcall_NARGS(flags) == front->arity && Py_TYPE(args[0]) == TensorType) {
        PyObject *pair[2] = {args[0], NULL}, *x = AT(args[0], T.array), *own = NULL;
        int mode = IS_DEVICE(x) ? mode_now() : 0;  /* its attributes are not read while `wf.compile` watches */
        if (mode < 0) return NULL;
        PyObject *dtype = IS_ARRAY(x) || (IS_DEVICE(x) && mode < 2) ? dtype_of(x) : NULL;
        int usual = dtype != NULL, kind = dtype == (PyObject *)F32 ? 0 : dtype == (PyObject *)F64 ? 1 : -1;
        Py_XDECREF(dtype);  /* an array holds it */
        if (!usual && PyErr_Occurred()) return NULL;
        if (front->floats_only && kind < 0) usual = 0;
        if (usual && front->arity == 2) {
            PyObject *other = args[1];
            if (Py_TYPE(other) == TensorType) {
                PyObject *y = AT(other, T.array);
                PyObject *second = y != NULL && Py_TYPE(y) == Py_TYPE(x) ? dtype_of(y) : NULL;
                usual = second == dtype;
                Py_XDECREF(second);
                if (second == NULL && PyErr_Occurred()) return NULL;
                pair[front->reverse ? 0 : 1] = other;
                if (front->reverse) pair[1] = args[0];
            } else if (front->numbers && kind >= 0 && (PyFloat_CheckExact(other) || PyLong_CheckExact(other))) {
                /* The number of one line of code is one object. */
                if (front->number == other && front->tensor_dtype == dtype && IS_A(AT(front->tensor, T.array), Py_TYPE(x))) own = Py_NewRef(front->tensor);
                else {
                    own = IS_DEVICE(x) ? PyObject_CallMethod(DEVICE, "number", "OO", other, dtype)
                        : PyObject_CallFunctionObjArgs(CONSTANT, other, dtype, NULL);
                    if (own == NULL) return NULL;
                    PyObject *old[3] = {front->number, front->tensor, front->tensor_dtype};
                    front->number = Py_NewRef(other);
                    front->tensor = Py_NewRef(own);
                    front->tensor_dtype = Py_NewRef(dtype);
                    for (int i = 0; i < 3; i++) Py_XDECREF(old[i]);
                }
                pair[front->number_first ? 0 : 1] = own;
                if (front->number_first) pair[1] = args[0];
            } else usual = 0;
        }
        if (usual) {
            Core *core = (Core *)Py_XNewRef((PyObject *)core_of(front->op));
            PyObject *made = NULL;
            int how = core == NULL ? FAILED : run_op(core, pair, front->arity, NULL, &made);
            Py_XDECREF(core);
            Py_XDECREF(own);
            if (how != NOT_USUAL) return how == DONE ? made : NULL;
        }
    }
    return PyObject_Vectorcall(front->general, args, flags, names);
}

static PyObject *new_front(PyTypeObject *type, PyObject *general) {
    Front *front = (Front *)type->tp_alloc(type, 0);
    if (front == NULL) return NULL;
    front->general = Py_NewRef(general);
    return (PyObject *)front;
}

static PyTypeObject *ApplyType, *MethodType;

/* Apply(general, arity) */
static PyObject *apply_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    PyObject *general;
    int arity;
    if (!PyArg_ParseTuple(args, "Oi", &general, &arity)) return NULL;
    Front *front = (Front *)new_front(type, general);
    if (front != NULL) { front->arity = (char)arity; front->call = (vectorcallfunc)apply_call; }
    return (PyObject *)front;
}

/* Method(general, op, arity, floats_only, numbers, reverse, number_first) */
static PyObject *method_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    PyObject *general, *op;
    int arity, floats_only, numbers, reverse, number_first;
    if (!PyArg_ParseTuple(args, "OOipppp", &general, &op, &arity, &floats_only, &numbers, &reverse, &number_first)) return NULL;
    Front *front = (Front *)new_front(type, general);
    if (front == NULL) return NULL;
    front->op = Py_NewRef(op);
    front->arity = (char)arity; front->floats_only = (char)floats_only; front->numbers = (char)numbers;
    front->reverse = (char)reverse; front->number_first = (char)number_first;
    front->call = (vectorcallfunc)method_call;
    return (PyObject *)front;
}

static int front_traverse(Front *front, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(front));
    Py_VISIT(front->op); Py_VISIT(front->general); Py_VISIT(front->number); Py_VISIT(front->tensor);
    return 0;
}
static int front_clear(Front *front) {
    Py_CLEAR(front->op); Py_CLEAR(front->general);
    Py_CLEAR(front->number); Py_CLEAR(front->tensor); Py_CLEAR(front->tensor_dtype);
    return 0;
}
static void front_dealloc(Front *front) {
    PyTypeObject *type = Py_TYPE(front);
    PyObject_GC_UnTrack(front);
    front_clear(front);
    type->tp_free((PyObject *)front);
    Py_DECREF(type);
}
static PyObject *front_get(PyObject *self, PyObject *object, PyObject *type) {
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}
/* It looks like the function behind it: name, text, module and signature are that one's. */
static PyObject *front_getattr(PyObject *self, PyObject *name) {
    static const char *const own[] = {"__module__", "__doc__", "__name__", "__qualname__"};
    PyObject *general = ((Front *)self)->general;
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) return Py_NewRef(general);
    for (int i = 0; i < 4; i++)
        if (PyUnicode_CompareWithASCIIString(name, own[i]) == 0) return PyObject_GetAttr(general, name);
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    return PyObject_GetAttr(general, name);
}
static PyMemberDef front_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Front, call), READONLY}, {NULL}};
#define FRONT_SLOTS(new)                                                                                                \
    {{Py_tp_new, new}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, front_get}, {Py_tp_members, front_members},   \
     {Py_tp_getattro, front_getattr}, {Py_tp_traverse, front_traverse}, {Py_tp_clear, front_clear},                        \
     {Py_tp_dealloc, front_dealloc}, {0, NULL}}
#define FRONT_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_VECTORCALL)
static PyType_Slot apply_slots[] = FRONT_SLOTS(apply_new), method_slots[] = FRONT_SLOTS(method_new);
static PyType_Spec apply_spec = {"wayfare.native.Apply", sizeof(Front), 0, FRONT_FLAGS, apply_slots};
static PyType_Spec method_spec = {"wayfare.native.Method", sizeof(Front), 0, FRONT_FLAGS, method_slots};
static PyObject *core_reduce(PyObject *self, PyObject *unused) {  /* a copy or a pickle of an op works it out again */
    return Py_BuildValue("O()", (PyObject *)Py_TYPE(Py_None));
}
static PyMethodDef core_methods[] = {{"__reduce_ex__", (PyCFunction)core_reduce, METH_O}, {NULL}};
static PyType_Slot core_slots[] = {{Py_tp_dealloc, core_dealloc}, {Py_tp_methods, core_methods}, {0, NULL}};
static PyType_Spec core_spec = {"wayfare.native.Core", sizeof(Core), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, core_slots};

static int add_type(PyObject *m, const char *name, PyType_Spec *spec, PyTypeObject **into) {
    *into = (PyTypeObject *)PyType_FromSpec(spec);
    return *into == NULL ? -1 : PyModule_AddObjectRef(m, name, (PyObject *)*into);
}
static int init_eager(PyObject *m) {
    return add_type(m, "Core", &core_spec, &CoreType) || add_type(m, "Apply", &apply_spec, &ApplyType)
        || add_type(m, "Method", &method_spec, &MethodType) ? -1 : 0;
}
