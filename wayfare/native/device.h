/* Eager ops on arrays of a device, forward and backward: by plans that are remembered (`plans.h`), else by the backend
   (wayfare/ops/cuda/backend.py), but with the tensor and its node made here. */

/* The plans of an op for this backend. */
static int find_plans(Core *core) {
    if (core->epoch == DEVICE_EPOCH) return 0;
    PyObject *pair = PyObject_CallMethod(DEVICE, "plans_of", "O", core->op);
    if (pair == NULL) return -1;
    PyObject *forward = PyTuple_GetItem(pair, 0), *gradients = forward == NULL ? NULL : PyTuple_GetItem(pair, 1);
    if (gradients != NULL) {
        Py_XSETREF(core->plans, IS_A(forward, PlansType) ? Py_NewRef(forward) : NULL);
        Py_XSETREF(core->gradient_plans, IS_A(gradients, PlansType) ? Py_NewRef(gradients) : NULL);
        core->epoch = DEVICE_EPOCH;
    }
    Py_DECREF(pair);
    return gradients == NULL ? -1 : 0;
}

/* Do these arrays lie on the current device? */
static int lie_here(PyObject *const *arrays, int count) {
    if (DEVICE_CURRENT == NULL) return 1;
    PyObject *current = PyObject_CallNoArgs(DEVICE_CURRENT);
    int here = current == NULL ? -1 : 1;
    for (int i = 0; i < count && here == 1; i++) {
        PyObject *data = PyObject_GetAttr(arrays[i], DATA_NAME);
        PyObject *number = data == NULL ? NULL : PyObject_GetAttr(data, DEVICE_ID_NAME);
        here = number == NULL ? -1 : PyObject_RichCompareBool(number, current, Py_EQ);
        Py_XDECREF(data);
        Py_XDECREF(number);
    }
    Py_XDECREF(current);
    return here;
}

static int on_device(PyObject *const *inputs, int arity) {
    if (DeviceArray == NULL) return 0;
    for (int i = 0; i < arity; i++) if (IS_DEVICE(AT(inputs[i], T.array))) return 1;
    return 0;
}

/* Is the exception that was raised about an op before this one, found only now? It is told once. */
static int is_late(void) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *late = value == NULL ? NULL : PyObject_GetAttr(value, LATE_NAME);
    if (late == NULL) PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    Py_XDECREF(late);
    return late == Py_True;
}

/* Run an op on tensors of a device; `mode` is 0 or 1. As `run_op`. */
static int run_on_device(Core *core, PyObject *const *inputs, int arity, PyObject *attrs, int mode, PyObject **result) {
    PyObject *arrays[MOST_INPUTS], *out = NULL, *found = NULL;
    int needs = 0;
    if (core->view) return NOT_USUAL;
    for (int i = 0; i < arity; i++) {
        if (!is_settled(inputs[i]) || !IS_DEVICE(AT(inputs[i], T.array))) return NOT_USUAL;
        arrays[i] = AT(inputs[i], T.array);
        if (AT(inputs[i], T.requires_grad) == Py_True) needs |= 1 << i;
    }
    if (find_plans(core) < 0) return FAILED;
    if (core->plans != NULL) {
        found = plans_made((Plans *)core->plans, arrays, arity, attrs);
        if (found != NULL) {
            if (PyList_GET_SIZE(found) > 0) out = Py_NewRef(PyList_GET_ITEM(found, 0));
            Py_DECREF(found);
        }
    }
    if (out == NULL && !PyErr_Occurred()) {
        int here = lie_here(arrays, arity);
        if (here == 0) return NOT_USUAL;
        PyObject *list = here < 0 ? NULL : PyTuple_New(arity);
        for (int i = 0; i < arity && list != NULL; i++) PyTuple_SET_ITEM(list, i, Py_NewRef(arrays[i]));
        if (list != NULL) out = PyObject_CallMethod(DEVICE, "run", "OOO", core->op, list, attrs == NULL ? NO_ATTRS : attrs);
        Py_XDECREF(list);
    }
    if (out == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_Exception) || is_late()) return FAILED;
        PyErr_Clear();  /* Python runs it again, and has the sentence for it */
        return NOT_USUAL;
    }
    if (PyTuple_Check(out) || PyList_Check(out)) { Py_DECREF(out); return NOT_USUAL; }
    if (!IS_DEVICE(out) && !PyArray_CheckExact(out)) {
        PyObject *made = PyArray_FromAny(out, NULL, 0, 0, 0, NULL);
        Py_DECREF(out);
        if (made == NULL) return FAILED;
        out = made;
    }
    PyObject *t = *result = new_tensor(out);
    if (t == NULL) return FAILED;
    if (mode == 0 && needs && core->vjp != Py_None) {
        PyObject *dtype = dtype_of(out);
        int is_float = dtype == NULL ? -1 : PyArray_DescrCheck(dtype)
            && (PyTypeNum_ISFLOAT(((PyArray_Descr *)dtype)->type_num) || PyTypeNum_ISUSERDEF(((PyArray_Descr *)dtype)->type_num));
        Py_XDECREF(dtype);
        if (is_float < 0 || (is_float && record_node(t, core, attrs == NULL ? NO_ATTRS : attrs, inputs, arity, needs, NULL, NULL) < 0)) {
            Py_DECREF(t);
            return FAILED;
        }
    }
    return DONE;
}

/* The gradients of a node of a device by one kernel: a list. NULL without an error: there is no plan for it. */
static PyObject *gradients_on_device(Core *core, PyObject *g, PyObject *kept, PyObject *edges, PyObject *attrs) {
    PyObject *given[MOST_INPUTS + 4];
    Py_ssize_t n = 0, k = PyTuple_GET_SIZE(kept);
    if (find_plans(core) < 0 || core->gradient_plans == NULL) return NULL;
    long needs = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(edges); i++) if (PyTuple_GET_ITEM(edges, i) != Py_None) needs |= 1 << i;
    given[n++] = PyLong_FromLong(needs);
    given[n++] = g;
    for (Py_ssize_t i = 0; i < k; i++) {
        PyObject *value = PyTuple_GET_ITEM(kept, i);
        given[n++] = IS_DEVICE(value) ? value : Py_None;
        if (value != Py_None && !IS_DEVICE(value)) n = -1;
        if (n < 0) break;
    }
    PyObject *made = n < 0 ? NULL : plans_made((Plans *)core->gradient_plans, given, n, attrs);
    Py_DECREF(given[0]);
    return made;
}

/* Add an array of a device to another one, in place. 1: done; 0: by the Python function; -1: an error. */
static int add_on_device(PyObject *to, PyObject *from) {
    if (!IS_DEVICE(to) || !IS_DEVICE(from)) return 0;
    PyObject *plans = PyObject_GetAttr(DEVICE, ADDITIONS_NAME), *pair[2] = {to, from};
    if (plans == NULL) return -1;
    int done = IS_A(plans, PlansType) ? plans_write((Plans *)plans, pair) : 0;
    Py_DECREF(plans);
    return done;
}

static int init_device(PyObject *m) {
    DATA_NAME = PyUnicode_InternFromString("data");
    PTR_NAME = PyUnicode_InternFromString("ptr");
    DEVICE_ID_NAME = PyUnicode_InternFromString("device_id");
    SHAPE_NAME = PyUnicode_InternFromString("shape");
    STRIDES_NAME = PyUnicode_InternFromString("strides");
    DTYPE_NAME = PyUnicode_InternFromString("dtype");
    ADDITIONS_NAME = PyUnicode_InternFromString("additions");
    LATE_NAME = PyUnicode_InternFromString("late");
    return PyErr_Occurred() || add_type(m, "Driver", &driver_spec, &DriverType) || add_type(m, "Plan", &plan_spec, &PlanType)
        || add_type(m, "Plans", &plans_spec, &PlansType) ? -1 : 0;
}
