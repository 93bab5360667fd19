/* Kernels on a device: launches that Python has prepared, called through the address of the driver's function. */

static PyTypeObject *DeviceArray;     /* the class of the arrays of a device that was started; NULL: there is none */
static PyObject *DEVICE;              /* its backend */
static PyObject *DEVICE_CURRENT;      /* says the number of the current device; NULL where there is only one */
static PyObject *COUNTERS;
static unsigned DEVICE_EPOCH;         /* how many backends there were: an op finds its plans anew for each */
static Py_ssize_t COUNT_KERNELS, COUNT_CALLS;
static PyObject *DATA_NAME, *PTR_NAME, *DEVICE_ID_NAME, *SHAPE_NAME, *STRIDES_NAME, *DTYPE_NAME, *ADDITIONS_NAME, *LATE_NAME;

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

/* set_up_launches(COUNTERS) */
static PyObject *set_up_launches(PyObject *self, PyObject *counters) {
    Py_ssize_t kernels = slot_of(Py_TYPE(counters), "kernels_run"), calls = slot_of(Py_TYPE(counters), "device_calls");
    if (kernels < 0 || calls < 0) return NULL;
    COUNT_KERNELS = kernels;
    COUNT_CALLS = calls;
    Py_XSETREF(COUNTERS, Py_NewRef(counters));
    Py_RETURN_NONE;
}

static PyMethodDef driver_methods[] = {{"launch", (PyCFunction)driver_call, METH_VARARGS, "Launch a function."}, {NULL}};
static PyMethodDef plan_methods[] = {
    {"run", (PyCFunction)plan_run, METH_VARARGS, "Launch on operands at addresses."},
    {"new", (PyCFunction)plan_call, METH_O, "New outputs for inputs; None if the plan does not fit."}, {NULL}};
static PyMemberDef plan_members[] = {{"made", T_OBJECT, offsetof(Plan, made), 0}, {NULL}};
static PyType_Slot driver_slots[] = {{Py_tp_new, driver_new}, {Py_tp_traverse, driver_traverse}, {Py_tp_clear, driver_clear},
                                     {Py_tp_dealloc, driver_dealloc}, {Py_tp_methods, driver_methods}, {0, NULL}};
static PyType_Slot plan_slots[] = {{Py_tp_new, plan_new}, {Py_tp_dealloc, plan_dealloc}, {Py_tp_methods, plan_methods},
                                   {Py_tp_members, plan_members}, {0, NULL}};
static PyType_Spec driver_spec = {"wayfare.native.Driver", sizeof(Driver), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, driver_slots};
static PyType_Spec plan_spec = {"wayfare.native.Plan", sizeof(Plan), 0, Py_TPFLAGS_DEFAULT, plan_slots};
