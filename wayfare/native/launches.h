/* Kernels on a device: launches that Python has prepared, called through the address of the driver's function. */

static PyTypeObject *DeviceArray;     /* the class of the arrays of a device that was started; NULL: there is none */
static PyObject *DEVICE;              /* its backend */
static PyObject *DEVICE_CURRENT;      /* says the number of the current device; NULL where there is only one */
static PyObject *COUNTERS;
static unsigned DEVICE_EPOCH;         /* how many backends there were: an op finds its plans anew for each */
static Py_ssize_t COUNT_KERNELS, COUNT_CALLS;
static PyObject *DATA_NAME, *PTR_NAME, *DEVICE_ID_NAME, *SHAPE_NAME, *STRIDES_NAME, *DTYPE_NAME, *ADDITIONS_NAME;

#define IS_DEVICE(o) ((o) != NULL && Py_TYPE(o) == DeviceArray)
enum { PLAN_WORDS = 128, MOST_OPERANDS = 64 };

typedef int (*Launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

/* -- Driver(launch, stream, failed, empty): how a device is asked --------------------------------------------------- */

/* `launch` is the address of cuLaunchKernel, `stream` a function that returns the current stream, or the address of one in
   C. `failed` is called with a status that is not 0, `empty` with the shape and the dtype of a new array. */

typedef struct {
    PyObject_HEAD
    Launch launch;                    /* cuLaunchKernel */
    intptr_t (*stream_now)(void);     /* the current stream; NULL: ask `stream` */
    PyObject *stream, *failed, *empty;
} Driver;
static PyTypeObject *DriverType, *PlanType, *PlansType;

static PyObject *driver_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    unsigned long long address;
    PyObject *stream, *failed, *empty;
    if (!PyArg_ParseTuple(args, "KOOO", &address, &stream, &failed, &empty)) return NULL;
    Driver *driver = (Driver *)type->tp_alloc(type, 0);
    if (driver == NULL) return NULL;
    driver->launch = (Launch)(uintptr_t)address;
    if (PyLong_Check(stream)) {
        unsigned long long found = PyLong_AsUnsignedLongLong(stream);
        driver->stream_now = (intptr_t (*)(void))(uintptr_t)found;
    }
    driver->stream = Py_NewRef(stream);
    driver->failed = Py_NewRef(failed);
    driver->empty = Py_NewRef(empty);
    return (PyObject *)driver;
}
static int driver_traverse(Driver *driver, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(driver)); Py_VISIT(driver->stream); Py_VISIT(driver->failed); Py_VISIT(driver->empty);
    return 0;
}
static int driver_clear(Driver *driver) {
    Py_CLEAR(driver->stream); Py_CLEAR(driver->failed); Py_CLEAR(driver->empty);
    return 0;
}
static void driver_dealloc(Driver *driver) {
    PyTypeObject *type = Py_TYPE(driver);
    PyObject_GC_UnTrack(driver);
    driver_clear(driver);
    type->tp_free((PyObject *)driver);
    Py_DECREF(type);
}

/* Launch in the current stream. The driver copies the words before it returns. */
static int driver_launch(Driver *driver, void *function, unsigned const *sizes, unsigned shared, void *words) {
    for (int again = 0; ; again++) {
        long long stream;
        if (driver->stream_now != NULL) stream = driver->stream_now();
        else {
            PyObject *found = PyObject_CallNoArgs(driver->stream);
            if (found == NULL) return -1;
            stream = PyLong_AsLongLong(found);
            Py_DECREF(found);
        }
        if (PyErr_Occurred()) return -1;
        void *parameters[1] = {words};
        int status;
        Py_BEGIN_ALLOW_THREADS  /* it may wait for room in the queue of the device */
        status = driver->launch(function, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], shared,
                                (void *)(intptr_t)stream, parameters, NULL);
        Py_END_ALLOW_THREADS
        if (status == 0) return 0;
        /* Raises, or returns True if it has put right what was missing. */
        PyObject *answer = PyObject_CallFunction(driver->failed, "i", status);
        int put_right = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (put_right < 0) return -1;
        if (!put_right || again) { PyErr_Format(PyExc_RuntimeError, "a launch failed with status %d", status); return -1; }
    }
}

/* launch(function, grid, block, shared, words): words is a block of memory. */
static PyObject *driver_call(Driver *driver, PyObject *args) {
    unsigned long long function;
    unsigned sizes[6], shared;
    Py_buffer words;
    if (!PyArg_ParseTuple(args, "K(III)(III)Iy*", &function, sizes, sizes + 1, sizes + 2, sizes + 3, sizes + 4, sizes + 5,
                          &shared, &words)) return NULL;
    int bad = driver_launch(driver, (void *)(uintptr_t)function, sizes, shared, words.buf);
    PyBuffer_Release(&words);
    if (bad) return NULL;
    Py_RETURN_NONE;
}

/* -- Plan: the launches of a loop for one layout -------------------------------------------------------------------- */

typedef struct { void *function; unsigned sizes[6]; int count, start, tables; } Step;
typedef struct {
    PyObject_HEAD
    Driver *driver;
    Step *steps;
    long long *words, *offsets, *masks;     /* words: of all steps; masks: bits that must be zero in the addresses */
    int count, operands, inputs, tables;
    Py_ssize_t workspace;
    PyObject *dtypes, *made;                /* dtypes of all operands; shapes of new outputs, if they are known */
} Plan;

static void plan_dealloc(Plan *plan) {
    PyTypeObject *type = Py_TYPE(plan);
    PyMem_Free(plan->steps);
    PyMem_Free(plan->words);
    PyMem_Free(plan->offsets);
    PyMem_Free(plan->masks);
    Py_XDECREF(plan->driver);
    Py_XDECREF(plan->dtypes);
    Py_XDECREF(plan->made);
    type->tp_free((PyObject *)plan);
    Py_DECREF(type);
}

static long long *whole_numbers(PyObject *tuple) {
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    long long *numbers = PyMem_Calloc(n + 1, sizeof(long long));
    if (numbers == NULL) { PyErr_NoMemory(); return NULL; }
    for (Py_ssize_t i = 0; i < n; i++) numbers[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    return numbers;
}

/* Plan(driver, steps, inputs, dtypes, masks, offsets, workspace). A step is (function, grid, block, words, number of
   the first word of tables); masks is () if any address will do. */
static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *options) {
    PyObject *driver, *steps, *dtypes, *masks, *offsets;
    int inputs;
    Py_ssize_t workspace;
    if (!PyArg_ParseTuple(args, "O!O!iO!O!O!n", DriverType, &driver, &PyTuple_Type, &steps, &inputs, &PyTuple_Type, &dtypes,
                          &PyTuple_Type, &masks, &PyTuple_Type, &offsets, &workspace)) return NULL;
    Plan *plan = (Plan *)type->tp_alloc(type, 0);
    if (plan == NULL) return NULL;
    plan->driver = (Driver *)Py_NewRef(driver);
    plan->dtypes = Py_NewRef(dtypes);
    plan->inputs = inputs;
    plan->operands = (int)PyTuple_GET_SIZE(dtypes);
    plan->tables = (int)PyTuple_GET_SIZE(offsets);
    plan->workspace = workspace;
    plan->count = (int)PyTuple_GET_SIZE(steps);
    plan->steps = PyMem_Calloc(plan->count + 1, sizeof(Step));
    plan->words = PyMem_Calloc(plan->count * PLAN_WORDS + 1, sizeof(long long));
    plan->offsets = whole_numbers(offsets);
    if (PyTuple_GET_SIZE(masks) > 0) plan->masks = whole_numbers(masks);
    if (plan->steps == NULL || plan->words == NULL) PyErr_NoMemory();
    if (plan->operands > MOST_OPERANDS || inputs > plan->operands
        || (plan->masks != NULL && PyTuple_GET_SIZE(masks) != plan->operands))
        PyErr_SetString(PyExc_ValueError, "a plan with too many operands, or masks for others");
    for (int i = 0; i < plan->count && !PyErr_Occurred(); i++) {
        Step *step = plan->steps + i;
        unsigned long long function;
        PyObject *words;
        unsigned *s = step->sizes;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(steps, i), "K(III)(III)O!i", &function, s, s + 1, s + 2, s + 3, s + 4, s + 5,
                              &PyTuple_Type, &words, &step->tables)) break;
        step->function = (void *)(uintptr_t)function;
        step->start = i * PLAN_WORDS;
        Py_ssize_t n = PyTuple_GET_SIZE(words);
        if (n > PLAN_WORDS || n < plan->operands || step->tables < plan->operands || step->tables + plan->tables > n) {
            PyErr_SetString(PyExc_ValueError, "a launch with too many words, or too few");
            break;
        }
        step->count = (int)n;
        for (Py_ssize_t k = 0; k < n; k++) plan->words[step->start + k] = PyLong_AsLongLong(PyTuple_GET_ITEM(words, k));
    }
    if (PyErr_Occurred()) { Py_DECREF(plan); return NULL; }
    return (PyObject *)plan;
}

static int pointer_of(PyObject *array, long long *pointer) {
    PyObject *data = PyObject_GetAttr(array, DATA_NAME), *found = data == NULL ? NULL : PyObject_GetAttr(data, PTR_NAME);
    Py_XDECREF(data);
    if (found == NULL) return -1;
    *pointer = PyLong_AsLongLong(found);
    Py_DECREF(found);
    return *pointer == -1 && PyErr_Occurred() ? -1 : 0;
}

static int plan_fits(Plan *plan, long long const *pointers) {
    if (plan->masks != NULL)
        for (int i = 0; i < plan->operands; i++) if (pointers[i] & plan->masks[i]) return 0;
    return 1;
}

static void count_up(Py_ssize_t offset) {
    if (COUNTERS == NULL || AT(COUNTERS, offset) == NULL) return;
    PyObject *more = PyLong_FromLongLong(PyLong_AsLongLong(AT(COUNTERS, offset)) + 1);
    if (more != NULL) replace(COUNTERS, offset, more);
}

static PyObject *new_device_array(Driver *driver, PyObject *shape, PyObject *dtype) {
    PyObject *args[3] = {NULL, shape, dtype};
    return PyObject_Vectorcall(driver->empty, args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

/* Launch on operands at these addresses. `workspace`: where the tables are; 0: memory is allocated if there are any. */
static int plan_launch(Plan *plan, long long const *pointers, long long workspace) {
    PyObject *memory = NULL;
    int bad = 0;
    count_up(COUNT_KERNELS);
    count_up(COUNT_CALLS);
    if (plan->workspace > 0 && workspace == 0) {
        /* Free again at the end: a later kernel in the stream that gets it waits for this one. */
        PyObject *shape = Py_BuildValue("(n)", plan->workspace);
        PyArray_Descr *bytes = PyArray_DescrFromType(NPY_UINT8);
        memory = shape == NULL ? NULL : new_device_array(plan->driver, shape, (PyObject *)bytes);
        Py_XDECREF(shape);
        Py_DECREF(bytes);
        bad = memory == NULL || pointer_of(memory, &workspace) < 0;
    }
    for (int i = 0; i < plan->count && !bad; i++) {
        Step *step = plan->steps + i;
        long long words[PLAN_WORDS];  /* a copy: another thread may run the same plan */
        memcpy(words, plan->words + step->start, sizeof(long long) * step->count);
        memcpy(words, pointers, sizeof(long long) * plan->operands);
        for (int t = 0; t < plan->tables; t++) words[step->tables + t] = workspace + plan->offsets[t];
        bad = driver_launch(plan->driver, step->function, step->sizes, 0, words) < 0;
    }
    Py_XDECREF(memory);
    return bad ? -1 : 0;
}

/* run(pointers, workspace or None) */
static PyObject *plan_run(Plan *plan, PyObject *args) {
    PyObject *given, *workspace;
    if (!PyArg_ParseTuple(args, "OO", &given, &workspace)) return NULL;
    PyObject *list = PySequence_Fast(given, "addresses are a list");
    if (list == NULL) return NULL;
    long long pointers[MOST_OPERANDS];
    Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
    if (n == plan->operands)
        for (Py_ssize_t i = 0; i < n; i++) pointers[i] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(list, i));
    else PyErr_Format(PyExc_ValueError, "%zd addresses for %d operands", n, plan->operands);
    long long start = workspace == Py_None ? 0 : PyLong_AsLongLong(workspace);
    Py_DECREF(list);
    if (PyErr_Occurred() || plan_launch(plan, pointers, start) < 0) return NULL;
    Py_RETURN_NONE;
}

/* New outputs for these inputs: a list. NULL without an error: the plan does not fit them. */
static PyObject *plan_made(Plan *plan, PyObject *const *inputs, Py_ssize_t count) {
    long long pointers[MOST_OPERANDS];
    int outputs = plan->operands - plan->inputs;
    if (plan->made == NULL || !PyTuple_CheckExact(plan->made) || count != plan->inputs || PyTuple_GET_SIZE(plan->made) != outputs) return NULL;
    for (int i = 0; i < plan->inputs; i++) if (pointer_of(inputs[i], pointers + i) < 0) return NULL;
    PyObject *outs = PyList_New(outputs);
    for (int i = 0; i < outputs && outs != NULL; i++) {
        PyObject *out = new_device_array(plan->driver, PyTuple_GET_ITEM(plan->made, i),
                                         PyTuple_GET_ITEM(plan->dtypes, plan->inputs + i));
        if (out == NULL || pointer_of(out, pointers + plan->inputs + i) < 0) { Py_XDECREF(out); Py_CLEAR(outs); break; }
        PyList_SET_ITEM(outs, i, out);
    }
    if (outs != NULL && (!plan_fits(plan, pointers) || plan_launch(plan, pointers, 0) < 0)) Py_CLEAR(outs);
    return outs;
}

/* new(inputs): outputs of the shapes `made`; None if dtypes or alignment are others. */
static PyObject *plan_call(Plan *plan, PyObject *given) {
    PyObject *list = PySequence_Fast(given, "inputs are a list"), *outs = NULL;
    if (list == NULL) return NULL;
    int usual = PySequence_Fast_GET_SIZE(list) == plan->inputs;
    for (int i = 0; i < plan->inputs && usual; i++) {
        PyObject *dtype = PyObject_GetAttr(PySequence_Fast_GET_ITEM(list, i), DTYPE_NAME), *own = PyTuple_GET_ITEM(plan->dtypes, i);
        int same = dtype == NULL ? -1 : dtype == own ? 1 : PyObject_RichCompareBool(dtype, own, Py_EQ);
        Py_XDECREF(dtype);
        if (same < 0) { Py_DECREF(list); return NULL; }
        usual = same;
    }
    if (usual) outs = plan_made(plan, PySequence_Fast_ITEMS(list), plan->inputs);
    Py_DECREF(list);
    if (outs == NULL && !PyErr_Occurred()) Py_RETURN_NONE;
    return outs;
}

/* -- Plans: the plans of an op, by the layouts of what it is given -------------------------------------------------- */

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

/* set_up_launches(COUNTERS) */
static PyObject *set_up_launches(PyObject *self, PyObject *counters) {
    Py_ssize_t kernels = slot_of(Py_TYPE(counters), "kernels_run"), calls = slot_of(Py_TYPE(counters), "device_calls");
    if (kernels < 0 || calls < 0) return NULL;
    COUNT_KERNELS = kernels;
    COUNT_CALLS = calls;
    Py_XSETREF(COUNTERS, Py_NewRef(counters));
    Py_RETURN_NONE;
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

static PyMethodDef driver_methods[] = {{"launch", (PyCFunction)driver_call, METH_VARARGS, "Launch a function."}, {NULL}};
static PyMethodDef plan_methods[] = {
    {"run", (PyCFunction)plan_run, METH_VARARGS, "Launch on operands at addresses."},
    {"new", (PyCFunction)plan_call, METH_O, "New outputs for inputs; None if the plan does not fit."}, {NULL}};
static PyMemberDef plan_members[] = {{"made", T_OBJECT, offsetof(Plan, made), 0}, {NULL}};
static PyMethodDef plans_methods[] = {
    {"remember", (PyCFunction)plans_remember, METH_VARARGS, "Remember a plan for operands of these layouts."},
    {"new", (PyCFunction)(void (*)(void))plans_call, METH_FASTCALL, "The results by a plan that is remembered, or None."},
    {"into", (PyCFunction)plans_into, METH_VARARGS, "Write the result over the first operand; whether there was a plan."},
    {NULL}};
static PyType_Slot driver_slots[] = {{Py_tp_new, driver_new}, {Py_tp_traverse, driver_traverse}, {Py_tp_clear, driver_clear},
                                     {Py_tp_dealloc, driver_dealloc}, {Py_tp_methods, driver_methods}, {0, NULL}};
static PyType_Slot plan_slots[] = {{Py_tp_new, plan_new}, {Py_tp_dealloc, plan_dealloc}, {Py_tp_methods, plan_methods},
                                   {Py_tp_members, plan_members}, {0, NULL}};
static PyType_Slot plans_slots[] = {{Py_tp_new, plans_new}, {Py_tp_dealloc, plans_dealloc}, {Py_tp_methods, plans_methods}, {0, NULL}};
static PyType_Spec driver_spec = {"wayfare.native.Driver", sizeof(Driver), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, driver_slots};
static PyType_Spec plan_spec = {"wayfare.native.Plan", sizeof(Plan), 0, Py_TPFLAGS_DEFAULT, plan_slots};
static PyType_Spec plans_spec = {"wayfare.native.Plans", sizeof(Plans), 0, Py_TPFLAGS_DEFAULT, plans_slots};
