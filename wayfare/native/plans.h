/* Plans: the plans of an op (`launches.h`), by the layouts of what it is given. */

typedef struct { PyObject_HEAD PyObject *table; } Plans;
enum { MOST_PLANS = 512 };

static PyObject *plans_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    Plans *plans = (Plans *)type->tp_alloc(type, 0);
    if (plans != NULL && (plans->table = PyDict_New()) == NULL) Py_CLEAR(plans);
    return (PyObject *)plans;
}
static void plans_dealloc(Plans *plans) {
    PyTypeObject *type = Py_TYPE(plans);
    Py_XDECREF(plans->table);
    type->tp_free((PyObject *)plans);
    Py_DECREF(type);
}

/* dtype, shape and strides of each array of a device; anything else as it is; the attributes (NULL or None: none).
   `arrays` gets the arrays. NULL without an error: they do not lie on the current device, or a sign of zero decides. */
static PyObject *layouts_of(PyObject *const *given, Py_ssize_t count, PyObject *attrs, PyObject **arrays, int *found) {
    PyObject *key, *current = NULL, *name, *value;
    Py_ssize_t place = 0, named = attrs != NULL && PyDict_Check(attrs) ? PyDict_GET_SIZE(attrs) : 0;
    *found = 0;
    while (named > 0 && PyDict_Next(attrs, &place, &name, &value))
        if (PyFloat_Check(value) && PyFloat_AS_DOUBLE(value) == 0) return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        if (IS_DEVICE(given[i])) {
            if (*found == MOST_OPERANDS) return NULL;
            arrays[(*found)++] = given[i];
        }
    if (DEVICE_CURRENT != NULL) {
        if ((current = PyObject_CallNoArgs(DEVICE_CURRENT)) == NULL) return NULL;
        for (int i = 0; i < *found; i++) {
            PyObject *data = PyObject_GetAttr(arrays[i], DATA_NAME);
            PyObject *number = data == NULL ? NULL : PyObject_GetAttr(data, DEVICE_ID_NAME);
            int here = number == NULL ? -1 : PyObject_RichCompareBool(number, current, Py_EQ);
            Py_XDECREF(data);
            Py_XDECREF(number);
            if (here < 1) { Py_DECREF(current); return NULL; }
        }
    }
    Py_ssize_t at = 0;
    key = PyTuple_New(count + 2 * *found + 2 * named + (current != NULL));
    if (key == NULL) { Py_XDECREF(current); return NULL; }
    if (current != NULL) PyTuple_SET_ITEM(key, at++, current);
    for (place = 0; named > 0 && PyDict_Next(attrs, &place, &name, &value); ) {
        PyTuple_SET_ITEM(key, at++, Py_NewRef(name));
        PyTuple_SET_ITEM(key, at++, Py_NewRef(value));
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!IS_DEVICE(given[i])) { PyTuple_SET_ITEM(key, at++, Py_NewRef(given[i])); continue; }
        PyObject *names[3] = {DTYPE_NAME, SHAPE_NAME, STRIDES_NAME};
        for (int k = 0; k < 3; k++) {
            PyObject *value = PyObject_GetAttr(given[i], names[k]);
            if (value == NULL) { Py_DECREF(key); return NULL; }
            PyTuple_SET_ITEM(key, at++, value);
        }
    }
    return key;
}

/* What is remembered for these operands, borrowed. NULL without an error: nothing. */
static PyObject *plans_find(Plans *plans, PyObject *const *given, Py_ssize_t count, PyObject *attrs, PyObject **arrays, int *found) {
    PyObject *key = layouts_of(given, count, attrs, arrays, found), *entry = NULL;
    if (key == NULL) return NULL;
    entry = PyDict_GetItemWithError(plans->table, key);
    if (entry == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear();  /* something that has no hash */
    Py_DECREF(key);
    return entry;
}

/* remember(given, attrs, plan, places=None, more=()): given are the arrays, and what else decides. `places` says for each
   result where it is among the outputs; -1 for the first array itself, None for no result. `more` are inputs of the plan
   behind the arrays that are given. */
static PyObject *plans_remember(Plans *plans, PyObject *args) {
    PyObject *given, *attrs, *plan, *places = Py_None, *more = NULL, *arrays[MOST_OPERANDS];
    int found;
    if (!PyArg_ParseTuple(args, "OOO|OO!", &given, &attrs, &plan, &places, &PyTuple_Type, &more)) return NULL;
    if ((plan != Py_None && !IS_A(plan, PlanType)) || (places != Py_None && !PyTuple_CheckExact(places))) {
        PyErr_SetString(PyExc_TypeError, "remember takes a plan and places");
        return NULL;
    }
    PyObject *list = PySequence_Fast(given, "operands are a list");
    if (list == NULL) return NULL;
    PyObject *key = layouts_of(PySequence_Fast_ITEMS(list), PySequence_Fast_GET_SIZE(list), attrs, arrays, &found), *entry = NULL;
    Py_DECREF(list);
    if (key != NULL && (entry = more == NULL ? PyTuple_Pack(2, plan, places) : PyTuple_Pack(3, plan, places, more)) != NULL) {
        if (PyDict_GET_SIZE(plans->table) >= MOST_PLANS) PyDict_Clear(plans->table);
        if (PyDict_SetItem(plans->table, key, entry) < 0) PyErr_Clear();
    }
    Py_XDECREF(key);
    Py_XDECREF(entry);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

/* The results for these operands by a plan that is remembered: a list. NULL without an error: there is none. */
static PyObject *plans_made(Plans *plans, PyObject *const *given, Py_ssize_t count, PyObject *attrs) {
    PyObject *arrays[MOST_OPERANDS];
    int found;
    PyObject *entry = plans_find(plans, given, count, attrs, arrays, &found), *outs = NULL;
    if (entry == NULL) return NULL;
    Py_INCREF(entry);  /* another thread may forget it meanwhile */
    PyObject *plan = PyTuple_GET_ITEM(entry, 0), *places = PyTuple_GET_ITEM(entry, 1), *results = NULL;
    PyObject *more = PyTuple_GET_SIZE(entry) > 2 ? PyTuple_GET_ITEM(entry, 2) : NULL;
    for (Py_ssize_t i = 0; more != NULL && i < PyTuple_GET_SIZE(more) && found < MOST_OPERANDS; i++)
        arrays[found++] = PyTuple_GET_ITEM(more, i);
    for (int i = 0; i < found; i++) Py_INCREF(arrays[i]);  /* their tensors may be given others while memory is allocated */
    if (plan != Py_None && (outs = plan_made((Plan *)plan, arrays, found)) == NULL) goto end;
    if (places == Py_None) results = outs;
    else {
        Py_ssize_t n = PyTuple_GET_SIZE(places);
        results = PyList_New(n);
        for (Py_ssize_t i = 0; i < n && results != NULL; i++) {
            PyObject *place = PyTuple_GET_ITEM(places, i);
            long which = place == Py_None ? 0 : PyLong_AsLong(place);
            PyObject *one = place == Py_None ? Py_None : which < 0 ? arrays[0] : PyList_GET_ITEM(outs, which);
            PyList_SET_ITEM(results, i, Py_NewRef(one));
        }
        Py_XDECREF(outs);
    }
end:
    for (int i = 0; i < found; i++) Py_DECREF(arrays[i]);
    Py_DECREF(entry);
    return results;
}

/* new(given, attrs=None): a list of results, or None. */
static PyObject *plans_call(Plans *plans, PyObject *const *args, Py_ssize_t count) {
    if (count < 1 || count > 2) { PyErr_SetString(PyExc_TypeError, "new(given, attrs=None)"); return NULL; }
    PyObject *list = PySequence_Fast(args[0], "operands are a list");
    if (list == NULL) return NULL;
    PyObject *outs = plans_made(plans, PySequence_Fast_ITEMS(list), PySequence_Fast_GET_SIZE(list), count > 1 ? args[1] : NULL);
    Py_DECREF(list);
    if (outs == NULL && !PyErr_Occurred()) Py_RETURN_NONE;
    return outs;
}

/* Write the result over the first operand, by a plan of one output. 1: done; 0: there is no plan; -1: an error. */
static int plans_write(Plans *plans, PyObject *const *pair) {
    PyObject *arrays[MOST_OPERANDS];
    int found;
    PyObject *entry = plans_find(plans, pair, 2, NULL, arrays, &found);
    if (entry == NULL) return PyErr_Occurred() ? -1 : 0;
    Plan *plan = (Plan *)PyTuple_GET_ITEM(entry, 0);
    long long pointers[3];
    if (!IS_A((PyObject *)plan, PlanType) || plan->operands != 3) return 0;
    Py_INCREF(plan);
    int done = pointer_of(pair[0], pointers) < 0 || pointer_of(pair[1], pointers + 1) < 0 ? -1 : 1;
    pointers[2] = pointers[0];
    if (done == 1) done = plan_fits(plan, pointers) ? (plan_launch(plan, pointers, 0) < 0 ? -1 : 1) : 0;
    Py_DECREF(plan);
    return done;
}

/* into(first, second): first = the result; whether there was a plan. */
static PyObject *plans_into(Plans *plans, PyObject *args) {
    PyObject *pair[2];
    if (!PyArg_ParseTuple(args, "OO", pair, pair + 1)) return NULL;
    int done = plans_write(plans, pair);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* set_up_device(array class, backend, what says the current device or None where there is one) */
static PyObject *set_up_device(PyObject *self, PyObject *args) {
    PyTypeObject *arrays;
    PyObject *backend, *current;
    if (!PyArg_ParseTuple(args, "O!OO", &PyType_Type, &arrays, &backend, &current)) return NULL;
    PyObject *old[3] = {(PyObject *)DeviceArray, DEVICE, DEVICE_CURRENT};
    DeviceArray = (PyTypeObject *)Py_NewRef(arrays);
    DEVICE = Py_NewRef(backend);
    DEVICE_CURRENT = current == Py_None ? NULL : Py_NewRef(current);
    DEVICE_EPOCH++;
    for (int i = 0; i < 3; i++) Py_XDECREF(old[i]);
    Py_RETURN_NONE;
}

static PyMethodDef plans_methods[] = {
    {"remember", (PyCFunction)plans_remember, METH_VARARGS, "Remember a plan for operands of these layouts."},
    {"new", (PyCFunction)(void (*)(void))plans_call, METH_FASTCALL, "The results by a plan that is remembered, or None."},
    {"into", (PyCFunction)plans_into, METH_VARARGS, "Write the result over the first operand; whether there was a plan."},
    {NULL}};
static PyType_Slot plans_slots[] = {{Py_tp_new, plans_new}, {Py_tp_dealloc, plans_dealloc}, {Py_tp_methods, plans_methods}, {0, NULL}};
static PyType_Spec plans_spec = {"wayfare.native.Plans", sizeof(Plans), 0, Py_TPFLAGS_DEFAULT, plans_slots};
